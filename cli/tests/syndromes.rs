//! Syndromes of soft-mlx5, whose reasons `doorbell decode` prints.

use std::fs;
use std::path::Path;

use doorbell_cli::decode::decode;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_reasons_are_those_of_the_device() {
    let device = read("../soft-mlx5/src/commands/refusal.rs");
    // `NAME = Status, 0x1001, "reason";`
    let rows = device.lines().filter_map(|line| {
        let (number, reason) = line.trim().strip_suffix("\";")?.split_once(", \"")?;
        Some(format!("{} {reason}", number.rsplit(' ').next()?))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 50, "{}", rows.len());
    assert_eq!(read("src/decode/soft_mlx5.txt").lines().collect::<Vec<_>>(), rows);
}

#[test]
fn a_refusal_of_a_striding_srq_says_why() {
    let printed = "CREATE_RMP: status=0x3 syndrome=0x130c";
    let log = "mlx5_core 0000:01:00.0: mlx5_cmd_out_err:808:(pid 1): CREATE_RMP(0x90c) op_mod(0x0) failed, \
               status bad parameter(0x3), syndrome (0x130c), err(-22)";
    for text in [printed, log] {
        let report = decode(text.as_bytes());
        let fields = report.findings.iter().flat_map(|finding| &finding.fields);
        let syndrome = fields.filter(|field| field.name == "syndrome of the command").collect::<Vec<_>>();
        let [syndrome] = syndrome[..] else { panic!("{text}: {report:?}") };
        let reason = "on soft-mlx5: The device has no work queues of this kind; an adapter has other numbers";
        assert_eq!((&*syndrome.value, syndrome.meaning.as_deref()), ("0x130c", Some(reason)), "{text}");
    }
}

#[test]
fn a_syndrome_of_an_adapter_has_no_reason() {
    let report = decode(b"CREATE_QP: status=0x3 syndrome=0x4bb88f");
    let fields = &report.findings[0].fields;
    let syndrome = fields.iter().find(|field| field.name == "syndrome of the command").unwrap();
    assert_eq!((&*syndrome.value, &syndrome.meaning), ("0x4bb88f", &None));
}
