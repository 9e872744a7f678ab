//! Text for `doorbell decode`: any text has an answer.

use doorbell_cli::decode;

/// Decodes the bytes, and checks the invariants of any answer.
pub fn run(bytes: &[u8]) {
    let report = decode::decode(bytes);
    for finding in &report.findings {
        assert!(finding.line > 0 && finding.times > 0);
        assert!(finding.first_byte + finding.bytes.len() <= 64 || finding.first_byte == 0);
        assert_eq!(
            finding.explanation.is_some(),
            finding.is_error() && !finding.fields.is_empty() && explained(finding)
        );
    }
}

/// Returns `true` if the error names its cause. The end of a CQE may be missing, or mlx5 may not have a status.
fn explained(finding: &decode::Finding) -> bool {
    const CAUSES: [&str; 7] = ["status", "syndrome", "syndrome of the CQ", "event", "command", "call", "error"];
    finding.fields.iter().any(|field| CAUSES.contains(&field.name))
}
