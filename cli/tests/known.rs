//! Errors as the programs of this field print them: the cases that were reported as wrong or unread, a line for each
//! current version, and all errors of doorbell itself.

use std::fs;
use std::path::Path;

use doorbell_cli::decode::{Finding, Report, decode};

fn case(name: &str) -> Report {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name);
    decode(&fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The fields of each finding as `name=value`, and what is checked first.
fn told(report: &Report) -> Vec<String> {
    let text = |finding: &Finding| {
        let fields = finding.fields.iter().filter(|field| field.offset.is_none_or(|at| at != 62));
        let fields: Vec<_> = fields.map(|field| format!("{}={}", field.name, field.value)).collect();
        format!("{} {}", finding.printer.unwrap_or("-"), fields.join(" "))
    };
    report.findings.iter().map(text).collect()
}

#[test]
fn the_reported_cases() {
    let cases: [(&str, &[&str]); 12] = [
        ("a01-cq-overrun-dmesg.txt", &["mlx5_core CQ number=0x40a syndrome of the CQ=0x01"]),
        ("a07-ompi-openib.txt", &["Open MPI status=10 syndrome=0x13 vendor_err_synd=0x88"]),
        ("a08-mooncake-async.txt", &["Mooncake event=IBV_EVENT_QP_ACCESS_ERR", "Mooncake event=IBV_EVENT_QP_FATAL"]),
        (
            "a14-deepep-321.txt",
            &[
                "NVSHMEM call=ibv_modify_qp errno=101",
                "Mooncake call=ibv_modify_qp errno=110 to state=RTR",
                "NCCL call=ibv_modify_qp errno=101",
            ],
        ),
        ("a15-nbs-2690.txt", &["- status=12 syndrome=0x15", "- call=ibv_post_recv errno=12"]),
        (
            "b01-doca-verbs-raw.txt",
            &["DOCA syndrome=0x04 vendor_err_synd=0x53 hw_err_synd=0x9d hw_synd_type=0x00 QP number=0x11b \
               wqe_counter=0x0008 opcode of the WQE=0x08"],
        ),
        (
            "b03-nvshmem-ibgda.txt",
            &["NVSHMEM syndrome=0x13 vendor_err_synd=0x88 hw_err_synd=0x00 hw_synd_type=0x00 QP number=0x113 \
               wqe_counter=0x0747 opcode of the WQE=0x08"],
        ),
        (
            "c02-retry-83-ucx-style.txt",
            &["UCX syndrome=0x15 vendor_err_synd=0x83 hw_err_synd=0x00 hw_synd_type=0x00 QP number=0x2f1a \
               wqe_counter=0x04b7 opcode of the WQE=0x08"],
        ),
        ("c05-nccl-229.txt", &["NCCL status=10 syndrome=0x13 vendor_err_synd=0x88"]),
        (
            "d01-dpdk-crypto.txt",
            &["DPDK syndrome=0x04 vendor_err_synd=0x51 QP number=0x1a2 wqe_counter=0x0010 opcode of the WQE=0x2f"],
        ),
        (
            "d13-rust-debug.txt",
            &["- srqn_uidx=0x000000 hw_err_synd=0x00 hw_synd_type=0x00 vendor_err_synd=0x88 syndrome=0x13 \
               opcode of the WQE=0x08 QP number=0x113 wqe_counter=0x0747 op_own=0xd2"],
        ),
        (
            "d18-interleaved-srqn.txt",
            &[
                "mlx5_ib srqn_uidx=0x00001f hw_err_synd=0x00 hw_synd_type=0x00 vendor_err_synd=0x88 syndrome=0x13 \
                 opcode of the WQE=0x08 QP number=0x113 wqe_counter=0x0747 op_own=0xd2",
                "mlx5_ib srqn_uidx=0x00002a hw_err_synd=0xa9 hw_synd_type=0x00 vendor_err_synd=0x56 syndrome=0x04 \
                 opcode of the WQE=0x00 QP number=0x1e9 wqe_counter=0x0054 op_own=0xe2",
            ],
        ),
    ];
    for (name, expected) in cases {
        assert_eq!(told(&case(name)), expected, "{name}");
    }
    // The second CQ is named, too.
    let notes = &case("a01-cq-overrun-dmesg.txt").findings[0].notes;
    assert_eq!(notes, &["the same of CQ 0x406, in line 2"]);
}

#[test]
fn a_status_is_no_syndrome() {
    let sure = |name| case(name).findings[0].explanation.as_ref().unwrap().sure.clone();
    for name in ["a07-ompi-openib.txt", "a15-nbs-2690.txt", "c05-nccl-229.txt"] {
        let sure = sure(name);
        assert!(sure.starts_with("the status is certain") && sure.contains("not printed"), "{sure}");
    }
    assert!(sure("c02-retry-83-ucx-style.txt").starts_with("the syndrome is certain"));
}

/// One line of each program, with the version whose source was read.
#[test]
fn current_versions() {
    let lines = [
        // NCCL 2.29 (5067397c), transport/net_ib.
        (
            "n1:24:25 [3] p2p.cc:71 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<38910> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Recv localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_2",
            "NCCL status=12 syndrome=0x15 vendor_err_synd=0x81",
        ),
        (
            "n1:24:25 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_3:1 async fatal event on QP (0x732d78661238): invalid request local work queue error",
            "NCCL event=IBV_EVENT_QP_REQ_ERR",
        ),
        (
            "n1:24:25 [0] misc/ibvwrap.cc:315 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3",
            "NCCL call=ibv_modify_qp errno=22 to state=RTR",
        ),
        // NVSHMEM 3 (2d7d25f), ibgda with NVSHMEM_IBGDA_DEBUG.
        (
            "[0] got completion with err:\n   syndrome=0x15, vendor_err_synd=0x81, hw_err_synd=0, hw_synd_type=0,\n   wqe_counter=0x8, s_wqe_opcode_qpn=0x1000113,\n   cqn=0x40a, cons_idx=0x8, prod_idx=0x9, idx=0x8",
            "NVSHMEM syndrome=0x15 vendor_err_synd=0x81 hw_err_synd=0x00 hw_synd_type=0x00 QP number=0x113 wqe_counter=0x0008 opcode of the WQE=0x01",
        ),
        // Mooncake (3b5a59413), worker_pool.cpp.
        (
            "E0419 23:51:51.067479 114309 worker_pool.cpp:296] Worker: Process failed for slice (opcode: 1, source_addr: 0x7fb3ce4e8000, length: 65536, dest_addr: 0x7f1200000000, local_nic: mlx5_0, peer_nic: n2@mlx5_1, dest_rkey: 6172, retry_cnt: 0): transport retry counter exceeded",
            "Mooncake status=12 syndrome=0x15",
        ),
        // Open MPI 4.1, btl/openib; later versions have no verbs of their own.
        (
            "[[27217,0],12][btl_openib_component.c:3556:handle_wc] from a to: b error polling HP CQ with status RECEIVER NOT READY RETRY EXCEEDED ERROR status number 13 for wr_id 19059c8 opcode 0  vendor error 135 qp_idx 0",
            "Open MPI status=13 syndrome=0x16 vendor_err_synd=0x87",
        ),
        // UCX 1.19 (9466d104), ib_mlx5_log.c.
        (
            "[n1:9:0:9] ib_mlx5_log.c:184  Remote access on mlx5_0:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)\n[n1:9:0:9] ib_mlx5_log.c:184  DCI QP 0x9a3 wqe[7]: RDMA_READ s-- [rva 0x1 rkey 0x2]",
            "UCX syndrome=0x13 vendor_err_synd=0x88 hw_err_synd=0x00 hw_synd_type=0x00 QP number=0x9a3 wqe_counter=0x0007 opcode of the WQE=0x10",
        ),
        // SPDK 25 (3230130e6), lib/mlx5 and nvmf.
        (
            "mlx5_dma.c:  97:mlx5_cqe_err: *WARNING*: Error on QP 0x1f3 wqe[012]: Local protection (synd 0x4 vend 0x53 hw 0x9d) opcode RDMA_WRITE",
            "SPDK syndrome=0x04 vendor_err_synd=0x53 hw_err_synd=0x9d QP number=0x1f3 wqe_counter=0x000c opcode of the WQE=0x08",
        ),
        (
            "rdma.c:4411:nvmf_rdma_log_wc_status: *ERROR*: Error on CQ 0x55d0, (qp state 6, in_error 1) request 0x139641767983056, type RECV, status: (5): Work Request Flushed Error",
            "SPDK status=5 syndrome=0x05",
        ),
        // DPDK 25 (38f72e50), drivers/net/mlx5 and drivers/crypto/mlx5.
        (
            "mlx5_net: Unexpected CQE error syndrome 0x04 CQN = 128 RQN = 4369 wqe_counter = 1 rq_ci = 2 cq_ci = 0",
            "DPDK syndrome=0x04 wqe_counter=0x0001",
        ),
        (
            "mlx5_crypto: CQE ERR:93005204.",
            "DPDK syndrome=0x04 vendor_err_synd=0x52 hw_err_synd=0x93 hw_synd_type=0x00",
        ),
        // libfabric 2 (af8ddbe92): the text of fi_cq_strerror is that of ibv_wc_status_str.
        (
            "fi_cq_readerr(): common/shared.c:2671, err: 5 (Input/output error), prov_errno: remote access error (10)",
            "- status=10 syndrome=0x13",
        ),
        // NIXL 0.9 (8770b655a), gpunetio, which does not swap; both readings are possible here.
        (
            "got completion with err: syndrome=0x13, vendor_err_synd=0x88, hw_err_synd=0, hw_synd_type=0, wqe_counter=256 wqe_qpn=a010008",
            "DOCA syndrome=0x13 vendor_err_synd=0x88 hw_err_synd=0x00 hw_synd_type=0x00 QP number=0x10008 or 0x10a wqe_counter=0x0100 or 0x0001 opcode of the WQE=0x0a or 0x08",
        ),
        // libgdsync (stored): without a queue the order of the counter cannot be told.
        (
            "[ERR] gds_mlx5_poll: got completion with err: idx=3, cq_type=tx, syndrome=0x13, vendor_err_synd=0x88, wqe_counter=2048",
            "DOCA syndrome=0x13 vendor_err_synd=0x88 wqe_counter=0x0800 or 0x0008",
        ),
        // Linux 6.16, mlx5_core.
        (
            "mlx5_core 0000:08:00.0: cq_err_event_notifier:517:(pid 0): CQ error on CQN 0x487, syndrome 0x2",
            "mlx5_core CQ number=0x487 syndrome of the CQ=0x02",
        ),
        (
            "mlx5_core 0000:00:03.0: mlx5_cmd_out_err:816:(pid 456): \\\n\tQUERY_HCA_CAP(0x100) op_mod(0x0) failed, \\\n\tstatus bad parameter(0x3), syndrome (0x3a3846), err(-22)",
            "mlx5_core command=QUERY_HCA_CAP(0x100) status of the command=bad parameter(0x3) syndrome of the command=0x3a3846 errno=22",
        ),
    ];
    for (text, expected) in lines {
        assert_eq!(told(&decode(text.as_bytes())), [expected], "{text}");
    }
}

/// Text in all spellings, with what is told of it.
#[test]
fn printed_text() {
    let cases = include_str!("printed.txt").split("\n\n").filter(|case| case.contains("=> "));
    let mut tried = 0;
    for case in cases {
        let (told_of, text): (Vec<&str>, Vec<&str>) =
            case.lines().filter(|line| !line.starts_with("# ")).partition(|line| line.starts_with("=> "));
        let expected: Vec<&str> = told_of.iter().map(|line| &line[3..]).filter(|line| *line != "nothing").collect();
        let report = decode((text.join("\n") + "\n").as_bytes());
        assert_eq!(told(&report), expected, "{text:#?}");
        assert!(
            report.findings.iter().filter(|finding| finding.is_error()).all(|finding| finding.explanation.is_some())
        );
        tried += 1;
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn the_queue_of_one_error_is_never_that_of_another() {
    // Two processes of UCX in turns.
    let text = "[n1:1:0:1] ib_mlx5_log.c:177  Remote access on mlx5_0:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)\n\
                [n1:2:0:2] ib_mlx5_log.c:177  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x53 hw_synd 0/0)\n\
                [n1:2:0:2] ib_mlx5_log.c:177  RC QP 0x22 wqe[2]: SEND s-e [va 0x1 len 8 lkey 0x9]\n\
                [n1:1:0:1] ib_mlx5_log.c:177  RC QP 0x11 wqe[1]: RDMA_WRITE s-e [rva 0x1 rkey 0x9]\n";
    let told_of = told(&decode(text.as_bytes()));
    assert!(told_of[0].contains("syndrome=0x13") && told_of[0].contains("QP number=0x11 "), "{told_of:?}");
    assert!(told_of[1].contains("syndrome=0x04") && told_of[1].contains("QP number=0x22 "), "{told_of:?}");
    // A line about another queue.
    let text = "completion failed: status 12, vendor_err 0x81\nQP 0x77 was created\n";
    assert_eq!(told(&decode(text.as_bytes())), ["- status=12 syndrome=0x15 vendor_err_synd=0x81"]);
    // Rows of two dumps without a prefix.
    let rows = |srqn: &str, tail: &str| {
        let zeros = "00 ".repeat(16);
        [
            format!("00000000: {zeros}\n"),
            format!("00000010: {zeros}\n"),
            format!("00000020: 00 00 00 {srqn} {}\n", &zeros[..36]),
            format!("00000030: {tail}\n"),
        ]
    };
    let a = rows("1f", "00 00 00 00 00 00 88 13 08 00 01 13 07 47 67 d2");
    let b = rows("2a", "00 00 00 00 a9 00 56 04 00 00 01 e9 00 54 e8 e2");
    let in_turns: String = (0..4).map(|row| a[row].clone() + &b[row]).collect();
    let one_late = a[..3].concat() + &b[..3].concat() + &a[3] + &b[3];
    for text in [in_turns, one_late] {
        let report = decode(text.as_bytes());
        let told = told(&report);
        assert_eq!(told.len(), 2, "{text}{told:?}");
        assert!(told[0].contains("QP number=0x113") && told[1].contains("QP number=0x1e9"), "{told:?}");
        assert!(told.iter().all(|told| !told.contains("srqn_uidx")), "{told:?}");
        let notes = report.findings.iter().flat_map(|finding| &finding.notes);
        assert!(notes.into_iter().any(|note| note.contains("mixed")), "{report:?}");
    }
    // Reports whose lines go on, in turns.
    let text = "[0] got completion with err:\n[1] got completion with err:\n   syndrome=0x13, vendor_err_synd=0x88,\n   \
                syndrome=0x15, vendor_err_synd=0x81,\n   wqe_counter=0x747, s_wqe_opcode_qpn=0x8000113,\n";
    let report = decode(text.as_bytes());
    assert!(told(&report).iter().all(|told| !told.contains("QP number")), "{report:?}");
    assert!(
        report.findings.iter().all(|finding| finding.notes.iter().any(|note| note.contains("mixed"))),
        "{report:?}"
    );
    // Reports that come one after the other are whole.
    let report = decode((a.concat() + &b.concat()).as_bytes());
    assert!(told(&report)[1].contains("srqn_uidx=0x00002a"), "{report:?}");
}

/// Every error of the library, as it displays and as `unwrap` prints it.
#[test]
fn errors_of_doorbell() {
    let texts = include_str!("../src/decode/error_texts.txt");
    let mut seen = 0;
    for line in texts.lines() {
        let (name, text) = line.split_once(": ").expect(line);
        for printed in [
            text.to_owned(),
            format!("2026-01-02T03:04:05Z ERROR app: receiving: {text}"),
            text.replace("mlx5_0", "rocep3s0f1").replace(" 3", " 17").replace("0x40", "0x1a2b"),
        ] {
            let report = decode(printed.as_bytes());
            assert_eq!(report.findings.len(), 1, "{name}: {printed}: {report:#?}");
            let finding = &report.findings[0];
            assert!(finding.is_error() && finding.explanation.is_some(), "{name}: {printed}");
        }
        let variant = name.rsplit("::").next().unwrap();
        for printed in [
            format!("called `Result::unwrap()` on an `Err` value: {variant}"),
            format!("called `Result::unwrap()` on an `Err` value: {variant} {{ limit: 3 }}"),
            format!("Error: {variant}(\"x\")"),
            format!("left: Err({variant}), right: Ok(())"),
        ] {
            let report = decode(printed.as_bytes());
            assert_eq!(report.findings.len(), 1, "{name}: {printed}: {report:#?}");
            let (error, _) = (&report.findings[0].fields[0].value, ());
            assert!(
                error == name || error.ends_with(&format!("::{variant}")) || error == variant,
                "{printed}: {error}"
            );
        }
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
    // Statuses as Debug prints them.
    for raw in 1..=13 {
        let status = doorbell::WcStatus::from_raw(raw);
        let report = decode(format!("Completion {{ status: {status:?}, vendor_err: 129 }}").as_bytes());
        assert!(told(&report)[0].contains(&format!("status={raw}")), "{status:?}: {report:?}");
    }
}

#[test]
fn other_text_is_no_error() {
    for text in [
        "the port is active, an event that everybody waited for",
        "HTTP status 404, error 12",
        "flush timeout [send_queue.size=255 recv_queue.size=256]",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0 (channel:0 slot:0 page:0x12 offset:0x0 grain:32 syndrome:0x12)",
        "ibv_devinfo: no error, vendor_id: 0x02c9, vendor_part_id: 4123",
        "thread 'main' panicked: index out of bounds: the len is 3 but the index is 7",
        "QP 0x22 was created, and the queue is full of hope",
        "Err(Full) of another library is not told from ours",
    ] {
        let report = decode(text.as_bytes());
        let ours = text.starts_with("Err(");
        assert_eq!(report.findings.is_empty(), !ours, "{text}: {report:#?}");
    }
}

#[test]
fn the_nearest_words_are_named() {
    let nearest = |text: &str| decode(text.as_bytes()).nearest.unwrap_or_default();
    let text = "something\nretry transport was exceeded by the counter\n";
    assert_eq!(nearest(text), "line 2 is most like \"transport retry counter exceeded\"");
    assert_eq!(nearest("lorem ipsum dolor"), "");
}
