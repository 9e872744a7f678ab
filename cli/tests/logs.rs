//! Reports in words, as programs print them.

use doorbell_cli::decode::{Finding, Kind, decode};

fn only(text: &str) -> Finding {
    let mut report = decode(text.as_bytes());
    assert_eq!(report.findings.len(), 1, "{text}: {:#?}", report.findings);
    report.findings.remove(0)
}

/// Name and number of each field that is a number.
fn numbers(finding: &Finding) -> Vec<(&str, &str)> {
    finding.fields.iter().map(|field| (field.name, field.value.as_str())).collect()
}

#[test]
fn reports_of_programs_are_read() {
    type Case<'a> = (&'a str, Option<&'a str>, &'a [(&'a str, &'a str)]);
    let cases: [Case; 17] = [
        (
            "[n1:31180:0:31180] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)\n\
             [n1:31180:0:31180] ib_mlx5_log.c:143  DCI QP 0x14e4 wqe[446]: SEND s-e [rqpn 0x2248a rlid 703] [inl len 18]\n",
            Some("UCX"),
            &[
                ("syndrome", "0x15"),
                ("vendor_err_synd", "0x81"),
                ("QP number", "0x14e4"),
                ("wqe_counter", "0x01be"),
                ("opcode of the WQE", "0x0a"),
            ],
        ),
        (
            "[n1:26543:0:26543] ib_mlx5_log.c:184  Local protection error on mlx5_0:1/IB (synd 0x4 vend 0x32 hw_synd 0/146)\n\
             [n1:26543:0:26543] ib_mlx5_log.c:184  SRQ QP 0x12639 wqe[1]: next_wqe 2 desc 0x7f - [byte_count 8256 lkey 0x179d5d]\n",
            Some("UCX"),
            &[
                ("syndrome", "0x04"),
                ("vendor_err_synd", "0x32"),
                ("hw_err_synd", "0x92"),
                ("hw_synd_type", "0x00"),
                ("QP number", "0x12639"),
            ],
        ),
        (
            "UCX  FATAL Error on QP 0x1590d wqe[43850]: Local QP operation (synd 0x2 vend 0x68) opcode MASKED_COMPARE_SWAP\n",
            Some("UCX"),
            &[("syndrome", "0x02"), ("QP number", "0x1590d"), ("wqe_counter", "0xab4a"), ("opcode of the WQE", "0x14")],
        ),
        (
            "mlx5_core 0000:3b:00.1 eth1: Error cqe on cqn 0x817, ci 0x8, sqn 0x1dbb, opcode 0xd, syndrome 0x1, vendor syndrome 0x68\n",
            Some("the kernel"),
            &[("syndrome", "0x01"), ("vendor_err_synd", "0x68"), ("QP number", "0x1dbb")],
        ),
        (
            "infiniband r0: mlx5_poll_one:527:(pid 0): Responder error cqe on cqn 0x406:\n\
             infiniband r0: mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9\n",
            Some("the kernel"),
            &[("syndrome", "0x05"), ("vendor_err_synd", "0xf9")],
        ),
        (
            "infiniband mlx5_0: mlx5_handle_error_cqe:333:(pid 0): WC error: 10, Message: remote access error\n",
            Some("mlx5_ib"),
            &[("status", "10"), ("syndrome", "0x13")],
        ),
        (
            "[Wed Jul 29 14:40:27 2026] mlx5_bond_0/1: QP 51291 error: local length error (0x8e 0x0 0x0)\n",
            Some("mlx5_ib"),
            &[("syndrome", "0x01"), ("vendor_err_synd", "0x8e"), ("hw_err_synd", "0x00"), ("QP number", "0xc85b")],
        ),
        (
            "Unexpected CQE error syndrome 0x04 CQN = 128 SQN = 14688 wqe_counter = 1 wq_ci = 2 cq_ci = 0\n",
            Some("DPDK"),
            &[("syndrome", "0x04"), ("QP number", "0x3960"), ("wqe_counter", "0x0001")],
        ),
        (
            "got completion with err: syndrome=0x4, vendor_err_synd=0x53, hw_err_synd=0x9d, hw_synd_type=0, wqe_counter=3 wqe_qpn=1f\n",
            Some("DOCA"),
            &[("syndrome", "0x04"), ("vendor_err_synd", "0x53"), ("hw_err_synd", "0x9d"), ("wqe_counter", "0x0003")],
        ),
        (
            "n1:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<54862> with status=12 opcode=32616 \
             len=0 vendor err 129 (Recv) localGid fd00:1148\n",
            Some("NCCL"),
            &[("status", "12"), ("syndrome", "0x15"), ("vendor_err_synd", "0x81")],
        ),
        (
            "net_ib.cu:788 NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81\n",
            Some("NCCL"),
            &[("syndrome", "0x04"), ("vendor_err_synd", "0x51")],
        ),
        (
            "rc_verbs_iface.c:124  send completion with error: local protection error [qpn 0xf9db wrid 0x149vendor_err 0x51]\n",
            Some("UCX"),
            &[("syndrome", "0x04"), ("vendor_err_synd", "0x51"), ("QP number", "0xf9db")],
        ),
        (
            "dc_verbs.c:614  UCX  ERROR Send completion with error on qp 0x6214: remote access error syndrome 0x88\n",
            Some("UCX"),
            &[("syndrome", "0x13"), ("vendor_err_synd", "0x88"), ("QP number", "0x6214")],
        ),
        (
            "Completion with error at client\n Failed status 4: wr_id 0 syndrom 0x51\nscnt=828, ccnt=700\n",
            Some("perftest"),
            &[("status", "4"), ("vendor_err_synd", "0x51")],
        ),
        (
            "n1:UCM:d600:37cc880: 1890740163 us: DTO completion ERR: status 10, op Invalid DTO OP?, vendor_err 0x88 - 0.0.0.0\n",
            None,
            &[("status", "10"), ("syndrome", "0x13"), ("vendor_err_synd", "0x88")],
        ),
        (
            "gp bad completion with status: 0xd, vendor syndrome: 0x87\n",
            None,
            &[("status", "13"), ("syndrome", "0x16"), ("vendor_err_synd", "0x87")],
        ),
        (
            "rdma.c:3858:nvmf_rdma_log_wc_status: *ERROR*: Error on CQ 0x1fec4e0, (qp state 3 ibv_state 6) request 0x139641767983056, \
             type DATA, status: (10): remote access error\n",
            Some("SPDK"),
            &[("status", "10"), ("syndrome", "0x13")],
        ),
    ];
    for (text, printer, expected) in cases {
        let finding = only(text);
        assert_eq!((finding.kind, finding.printer), (Kind::Log, printer), "{text}");
        let numbers = numbers(&finding);
        for field in expected {
            assert!(numbers.contains(field), "{text}: {field:?} in {numbers:?}");
        }
        assert!(finding.explanation.is_some(), "{text}");
    }
}

#[test]
fn decimal_and_hexadecimal_vendor_syndromes_differ() {
    let finding = only("NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 2, vendor err 81\n");
    assert!(finding.notes.iter().any(|note| note.contains("it is 0x51, not 0x81")), "{:?}", finding.notes);
}

#[test]
fn the_adapter_of_another_vendor_is_suspected() {
    let finding = only(
        "CQE ERROR wr_id=3 status=12(transport retry counter exceeded) opcode=1 byte_len=0 vendor_err=0xa qp_num=0x2c10\n",
    );
    let sure = finding.explanation.unwrap().sure;
    assert!(sure.contains("0x0a is unknown") && sure.contains("no ConnectX"), "{sure}");
}

#[test]
fn a_repeated_report_is_printed_once() {
    let one = "infiniband r0: mlx5_poll_one:527:(pid 0): Responder error cqe on cqn 0x406:\n\
               infiniband r0: mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9\n";
    assert_eq!(only(&one.repeat(5000)).times, 5000);
}

#[test]
fn text_next_to_a_dump_is_not_repeated() {
    let text = "infiniband mlx5_0: mlx5_handle_error_cqe:333:(pid 0): WC error: 10, message: remote access error\n\
                infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe\n\
                00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
                00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
                00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
                00000030: 00 00 00 00 00 00 88 13 08 03 61 b3 1e a1 42 d3\n";
    assert_eq!(only(text).kind, Kind::ErrorCqe);
}

/// A report is of the dump within eight lines, and says its own syndrome again within two.
#[test]
fn reports_belong_together_within_a_distance() {
    let report = "Local protection error on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/0)\n";
    let row = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n";
    let dump = row.repeat(3) + "00 00 00 00 00 00 51 04 0d 00 01 a2 00 10 3f d2\n";
    for (lines, findings) in [(7, 1), (8, 2)] {
        let between = "nothing\n".repeat(lines);
        for text in [format!("{report}{between}{dump}"), format!("{dump}{between}{report}")] {
            // The dump begins or ends there.
            let last = if text.starts_with("00") { 3 } else { 0 };
            let text = text.replacen("nothing\n", "", last);
            assert_eq!(decode(text.as_bytes()).findings.len(), findings, "{lines}:\n{text}");
        }
    }
    for (lines, times) in [(0, 1), (1, 1), (2, 2)] {
        let again = format!("{report}{}got completion with error syndrome 0x4\n", "nothing\n".repeat(lines));
        let found = decode(again.as_bytes()).findings;
        assert_eq!(found.iter().map(|finding| finding.times).sum::<usize>(), times, "{again}\n{found:#?}");
    }
}

/// A syndrome of a command is larger than any of a CQE.
#[test]
fn a_small_syndrome_is_not_of_a_command() {
    let command = |syndrome: u32| {
        let text = format!(
            "Failed to create FT (syndrome: {syndrome:#x})\nibv_create_qp failed: Invalid argument, syndrome {syndrome:#x}\n"
        );
        let found = decode(text.as_bytes()).findings;
        found.iter().flat_map(|finding| numbers(finding)).filter(|field| field.0 == "syndrome of the command").count()
    };
    assert_eq!([command(0xff), command(0x100)], [0, 2]);
}

#[test]
fn dumps_of_older_adapters_are_named_and_not_decoded() {
    let text = "local QP operation err (QPN 350406, WQE @ 00000883, CQN 9b0083, index 153)\n  [ 0] 00350406\n  [ 4] 00000000\n\
                send completion with error: local QP operation error qpn 0x350406 wrid 0x38 vendor_err 0x70\n";
    let report = decode(text.as_bytes());
    assert!(report.notes[0].contains("libmlx4"), "{:?}", report.notes);
    assert_eq!(report.findings.len(), 1);
    let sure = &report.findings[0].explanation.as_ref().unwrap().sure;
    assert!(sure.contains("0x70 is unknown"), "{sure}");
    let command = "mlx5_core 0000:04:00.0: mlx5_cmd_check:795:(pid 9993): RTR2RTS_QP(0x504) op_mod(0x0) failed, status bad parameter(0x3), \
                   syndrome (0x4bb88f)\n";
    let report = decode(command.as_bytes());
    assert!(numbers(&report.findings[0]).contains(&("syndrome of the command", "0x4bb88f")), "{report:?}");
}
