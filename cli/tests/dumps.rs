//! Findings and explanations of `decode` for each dump of an adapter, as the programs of this field print it.

use doorbell_cli::decode::{Blame, Finding, Kind, decode};
use doorbell_silicon::{Dump, Fields, cqes, dumps};
use mlx5_wire::syndrome::Syndrome;

fn words(bytes: &[u8], group: usize, in_row: usize, before: &str) -> String {
    let hex = |group: &[u8]| group.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let row = |row: &[u8]| format!("{before}{}\n", row.chunks(group).map(hex).collect::<Vec<_>>().join(" "));
    bytes.chunks(in_row).map(row).collect()
}

fn rows(bytes: &[u8], before: &str, offset: fn(usize) -> String, after: &str) -> String {
    let row = |(number, row): (usize, &[u8])| {
        let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{before}{} {}{after}\n", offset(16 * number), hex.join(" "))
    };
    bytes.chunks(16).enumerate().map(row).collect()
}

fn kernel_offset(at: usize) -> String {
    format!("{at:08x}:")
}

/// One CQE as different programs and people show it, each with the expected printer.
fn printed(bytes: &[u8]) -> Vec<(&'static str, Option<&'static str>, String)> {
    let libmlx5 = format!("mlx5: host7: got completion with error:\n{}", words(bytes, 4, 16, ""));
    let glued = format!("{}[1496344648.549828] [host7:14872:0] next report\n", libmlx5.trim_end());
    let blank_between = libmlx5.replace('\n', "\n\n");
    let kernel_rows = rows(bytes, "[  408.380187] ", kernel_offset, "");
    let kernel = format!("infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe\n{kernel_rows}");
    let old_kernel = format!("mlx5_0:dump_cqe:253:(pid 4): dump error cqe\n{}", words(bytes, 4, 16, ""));
    let quoted: String = kernel.lines().map(|line| format!("> > >> {line}\n")).collect();
    let mail = kernel.replace('\n', "=0A=\n");
    let dpdk = format!(
        "MLX5 Error CQE: at [0x7f6a7d20c000], len=64\n{}",
        rows(bytes, "", |at| format!("{at:08X}:"), " | .seen...........")
            .to_uppercase()
            .replace(" | .SEEN", " | .seen")
    );
    let journal = rows(bytes, "May 16 01:02:03 nfs1 kernel: cqe_dump: ", kernel_offset, "");
    let debugger: String = bytes
        .chunks(16)
        .enumerate()
        .map(|(number, row)| {
            let word = |word: &[u8]| format!("0x{:08x}", u32::from_le_bytes(word.try_into().unwrap()));
            let words: Vec<String> = row.chunks(4).map(word).collect();
            format!("0x7ffff7fa{:04x}:\t{}\n", 0x1000 + 16 * number, words.join("\t"))
        })
        .collect();
    let c_array: String = bytes
        .chunks(8)
        .map(|row| row.iter().map(|byte| format!("0x{byte:02x}, ")).collect::<String>() + "\n")
        .collect();
    vec![
        ("libmlx5", Some("libmlx5"), libmlx5),
        ("libmlx5, with text behind the last word", Some("libmlx5"), glued),
        ("libmlx5, with blank lines", Some("libmlx5"), blank_between),
        ("kernel", Some("mlx5_ib"), kernel),
        ("old kernel", Some("mlx5_ib"), old_kernel),
        ("quoted mail", Some("mlx5_ib"), quoted),
        ("mail over the wire", Some("mlx5_ib"), mail),
        ("journal", Some("mlx5_ib"), journal),
        ("DPDK", Some("DPDK"), dpdk),
        ("one word", None, words(bytes, 64, 64, "")),
        ("bytes", None, words(bytes, 1, 64, "")),
        ("halves", None, words(bytes, 2, 32, "  ")),
        ("words in eights", None, words(bytes, 4, 32, "")),
        ("doubles", None, words(bytes, 8, 16, "")),
        ("a debugger", None, debugger),
        ("a C array", None, c_array),
        ("capitals", None, words(bytes, 4, 16, "").to_uppercase()),
        ("a date in front", None, words(bytes, 4, 16, "20260729 ")),
    ]
}

fn field<'a>(finding: &'a Finding, name: &str) -> (&'a str, &'a str) {
    let field = finding.fields.iter().find(|field| field.name == name).unwrap_or_else(|| panic!("{name}"));
    (&field.value, field.meaning.as_deref().unwrap_or_default())
}

fn compare(finding: &Finding, fields: &Fields, what: &str) {
    let number = |value: &str| u32::from_str_radix(value.strip_prefix("0x").expect(value), 16).unwrap();
    let expected = [
        ("hw_err_synd", fields.hw_err_synd.into()),
        ("hw_synd_type", fields.hw_synd_type.into()),
        ("vendor_err_synd", fields.vendor.into()),
        ("syndrome", fields.syndrome.into()),
        ("opcode of the WQE", fields.send_opcode.into()),
        ("QP number", fields.qpn),
        ("wqe_counter", fields.wqe_counter.into()),
    ];
    for (name, value) in expected {
        assert_eq!(number(field(finding, name).0), value, "{what}: {name}");
    }
    let names = Syndrome::new(fields.syndrome).names().unwrap();
    assert!(field(finding, "syndrome").1.contains(names.verbs), "{what}");
    assert!(field(finding, "op_own").1.starts_with(&fields.opcode), "{what}");
    assert!(field(finding, "op_own").1.ends_with(&format!("owner {}", fields.owner)), "{what}");
}

fn wqe<'a>(name: &str) -> &'a Dump {
    dumps().iter().find(|dump| dump.name == name).unwrap()
}

#[test]
fn each_dump_in_each_form_decodes_to_what_its_report_says() {
    for dump in cqes() {
        for (form, printer, text) in printed(&dump.bytes) {
            let what = format!("{} as {form}:\n{text}", dump.name);
            // The output of a program alone, and in the middle of a log.
            let inside = format!("first line\nsecond, 12 34\n{text}\nthe end: 0x1234 00:11:22:33:44:55\n");
            for text in [&text, &inside] {
                let report = decode(text.as_bytes());
                assert_eq!(report.findings.len(), 1, "{what}: {:#?}", report.findings);
                let finding = &report.findings[0];
                assert_eq!((finding.kind, finding.printer), (Kind::ErrorCqe, printer), "{what}");
                assert_eq!(finding.bytes, dump.bytes, "{what}");
                compare(finding, dump.fields.as_ref().unwrap(), &what);
                let sum = finding.signature.as_ref().unwrap().residue;
                if let Some(counter) = dump.counter {
                    assert_eq!(u32::from(sum), counter, "{what}");
                }
            }
        }
    }
}

#[test]
fn the_verdicts_are_those_of_the_reports() {
    let verdict = |name: &str| {
        let dump = cqes().find(|dump| dump.name == name).unwrap();
        let report = decode(words(&dump.bytes, 4, 16, "").as_bytes());
        let explanation = report.findings.into_iter().next().unwrap().explanation.unwrap();
        (explanation.failed, explanation.blame)
    };
    for name in ["A1", "A6", "A9"] {
        let (failed, blame) = verdict(name);
        assert!(failed.contains("refused the access of an RDMA_READ"), "{failed}");
        assert_eq!(blame, Blame::BothEnds);
    }
    // The dumps that the maintainer of the driver could not read.
    for name in ["A2", "A5", "B1", "B2", "B3", "B4", "B5"] {
        assert!(verdict(name).0.contains("refused the access of an RDMA_WRITE"), "{name}");
    }
    assert!(verdict("A3").0.contains("refused an RDMA_READ as invalid"));
    for name in ["A4", "A7", "A8", "D1", "D2"] {
        let (failed, blame) = verdict(name);
        assert!(failed.contains("may not access the local memory"), "{name}: {failed}");
        assert_eq!(blame, Blame::ThisProgram);
    }
    assert_eq!(verdict("A10").1, Blame::Peer);
    for name in ["B6", "B7"] {
        assert!(verdict(name).0.contains("UMR could not change a memory key"), "{name}");
    }
    // The kernel log beside them names the IOMMU.
    for name in ["B8", "B9"] {
        assert_eq!(verdict(name).1, Blame::Machine);
    }
    assert!(verdict("C1").0.contains("inline header"));
    assert!(verdict("C2").0.contains("refused a UMR as illegal"));
    assert!(verdict("C3").0.contains("refused a SEND_INVAL as illegal"));
    assert_eq!(verdict("C4").1, Blame::EarlierError);
    for name in ["C5", "C6"] {
        assert!(verdict(name).0.contains("into the posted receive"), "{name}");
    }
}

#[test]
fn the_last_row_alone_says_what_failed() {
    for dump in cqes() {
        let row = words(&dump.bytes[48..], 4, 16, "");
        for text in [
            row.clone(),
            format!("mlx5: n1: got completion with error:\n{row}"),
            rows(&dump.bytes[48..], "", |_| "00000030:".into(), ""),
        ] {
            let report = decode(text.as_bytes());
            let finding = &report.findings[0];
            assert_eq!((report.findings.len(), finding.kind), (1, Kind::PartOfErrorCqe), "{}: {text}", dump.name);
            compare(finding, dump.fields.as_ref().unwrap(), &dump.name);
            assert!(finding.signature.is_none(), "it covers all 64 bytes");
            assert!(finding.notes.iter().any(|note| note.contains("0x30 to 0x3f")), "{:?}", finding.notes);
        }
    }
}

#[test]
fn wqes_decode_and_find_their_cqe() {
    for (cqe, wqe_name, expected) in [
        ("C1", "W1", "the WQE of the CQE in line 1"),
        ("C2", "W2", "the WQE of the CQE in line 1"),
        ("C3", "W3", "not a WQE of the queue"),
        ("S1", "W4", "the WQE of the CQE in line 1"),
    ] {
        let cqe = cqes().find(|dump| dump.name == cqe).unwrap();
        let wqe = wqe(wqe_name);
        let head = format!("WQE DUMP: WQ size 1024 WQ cur size 0, WQE index 0xf, len: {}\n", wqe.bytes.len());
        let text = rows(&cqe.bytes, "", kernel_offset, "") + &head + &rows(&wqe.bytes, "", kernel_offset, "");
        let report = decode(text.as_bytes());
        let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::ErrorCqe, Kind::Wqe], "{wqe_name}");
        let notes = &report.findings[1].notes;
        assert!(notes.iter().any(|note| note.contains(expected)), "{wqe_name}: {notes:?}");
    }
    // Without words around it, and in the form of UCX or a debugger.
    let report = decode(words(&wqe("W1").bytes, 4, 32, "").as_bytes());
    let finding = &report.findings[0];
    assert_eq!((report.findings.len(), finding.kind), (1, Kind::Wqe));
    assert_eq!(field(finding, "data segment").0, "byte_count 0x2b, lkey 0x80000, address 0x59ee30800");
    assert_eq!(field(finding, "opcode").1, "SEND");
    assert!(!finding.is_error());
}

#[test]
fn the_index_that_the_kernel_prints_is_checked() {
    let text = |ci: &str| {
        let head = format!(
            "mlx5_core 0000:3b:00.1 eth1: Error cqe on cqn 0x817, ci {ci}, qn 0x1dbb, opcode 0xd, syndrome 0x1, vendor syndrome 0x68\n"
        );
        head + &rows(&cqes().find(|dump| dump.name == "C1").unwrap().bytes, "", kernel_offset, "")
    };
    let signature = |ci| decode(text(ci).as_bytes()).findings.remove(0).signature.unwrap();
    assert_eq!(signature("0x8").holds, Some(true));
    assert_eq!(signature("0x9").holds, Some(true), "kernels of 2019 print the next one");
    assert_eq!(signature("0x7").holds, None, "the CQ may have wrapped");
    let report = decode(text("0x8").replace("syndrome 0x1,", "syndrome 0x4,").as_bytes());
    let notes = report.findings.iter().flat_map(|finding| &finding.notes);
    assert!(notes.into_iter().any(|note| note.contains("other syndromes")), "{report:?}");
}

#[test]
fn what_is_not_known_is_said_to_be_unknown() {
    let mut bytes = cqes().find(|dump| dump.name == "A7").unwrap().cqe();
    bytes[54] = 0xe7;
    let explanation = decode(words(&bytes, 4, 16, "").as_bytes()).findings.remove(0).explanation.unwrap();
    assert!(explanation.sure.contains("0xe7 is unknown"), "{}", explanation.sure);
    bytes[54] = 0x88;
    let explanation = decode(words(&bytes, 4, 16, "").as_bytes()).findings.remove(0).explanation.unwrap();
    assert!(explanation.sure.contains("unknown with this syndrome (seen with 0x13)"), "{}", explanation.sure);
    // A syndrome without a name: only the words before it say that it is an error.
    bytes[55] = 0x77;
    let bare = decode(words(&bytes, 4, 16, "").as_bytes()).findings.remove(0);
    assert_eq!(bare.kind, Kind::Unknown);
    let text = format!("mlx5: n1: got completion with error:\n{}", words(&bytes, 4, 16, ""));
    let explanation = decode(text.as_bytes()).findings.remove(0).explanation.unwrap();
    assert_eq!(explanation.blame, Blame::Unknown);
    assert!(explanation.sure.contains("unknown"), "{}", explanation.sure);
}

#[test]
fn all_vendor_syndromes_are_explained_with_their_sources() {
    for known in mlx5_wire::vendor::KNOWN {
        let text = format!(
            "[n1:1:0:1] ib_mlx5_log.c:143  Error on mlx5_0:1/IB (synd {:#x} vend {:#x} hw_synd 0/0)\n",
            known.syndrome.get(),
            known.vendor
        );
        let report = decode(text.as_bytes());
        assert_eq!(report.findings.len(), 1, "{text}");
        let explanation = report.findings[0].explanation.as_ref().unwrap();
        for source in known.sources {
            assert!(explanation.sources.iter().any(|known| known.place == *source), "{text}: {source}");
        }
        assert!(!explanation.checks.is_empty() && !explanation.sure.contains("unknown"), "{text}");
    }
}
