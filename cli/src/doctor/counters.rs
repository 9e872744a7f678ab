//! Counters of a port, and their meanings.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Level, Patient};
use crate::sysfs;

/// Counters of completions with an error, and those of them that were flushed.
pub(crate) const FLUSHED: [(&str, &str); 2] =
    [("req_cqe_error", "req_cqe_flush_error"), ("resp_cqe_error", "resp_cqe_flush_error")];

/// Counters of trouble, with their meanings.
pub(crate) const MEANINGS: [(&str, &str); 27] = [
    ("out_of_buffer", "messages that found no receive posted: post more receives, or sooner"),
    ("rnr_nak_retry_err", "refusals by a receiver that was not ready, after which sends ended"),
    ("local_ack_timeout_err", "acknowledgements that did not come in time: loss, congestion, a peer that is gone"),
    ("req_transport_retries_exceeded", "sends that ended because no acknowledgement came after all retries"),
    ("packet_seq_err", "packets that were lost on the way to the peer"),
    ("out_of_sequence", "packets that came out of order: loss, or more than one path"),
    ("duplicate_request", "requests that came twice: acknowledgements were lost or late"),
    ("implied_nak_seq_err", "lost answers to READs"),
    ("req_cqe_error", "sends that completed in error, without those that were flushed"),
    ("resp_cqe_error", "receives that completed in error, without those that were flushed"),
    ("req_remote_access_errors", "accesses that peers refused"),
    ("req_remote_invalid_request", "requests that peers refused as invalid"),
    ("resp_local_length_error", "messages that were longer than their receive"),
    ("resp_remote_access_errors", "accesses of peers that were refused here"),
    ("rx_icrc_encapsulated", "RoCE packets with a wrong checksum"),
    ("roce_adp_retrans", "adaptive retransmissions: packets are lost"),
    ("rx_discards_phy", "packets that the port dropped for want of buffers: flow control (PFC)"),
    ("port_rcv_errors", "damaged packets"),
    ("port_xmit_discards", "packets that were dropped before they left"),
    ("port_rcv_constraint_errors", "packets of other partitions"),
    ("port_rcv_remote_physical_errors", "packets that were damaged before the last switch"),
    ("symbol_error", "errors of the cable"),
    ("link_downed", "times that the link went down"),
    ("link_error_recovery", "times that the link recovered from errors"),
    ("local_link_integrity_errors", "errors of the link"),
    ("excessive_buffer_overrun_errors", "overruns of the port's buffers"),
    ("VL15_dropped", "management packets that were dropped"),
];

/// Values by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads the counters of a port.
    pub fn read(port: &Path) -> Self {
        let mut values: BTreeMap<String, u64> = BTreeMap::new();
        for dir in ["counters", "hw_counters"].map(|name| port.join(name)) {
            for name in sysfs::entries(&dir) {
                if let Some(value) = sysfs::read(&dir.join(&name)).and_then(|text| text.parse().ok()) {
                    values.insert(name, value);
                }
            }
        }
        Self::of(values)
    }

    /// Takes values by name.
    pub fn of(mut values: BTreeMap<String, u64>) -> Self {
        // Requests and receives of a queue pair that ended are flushed: that is no trouble.
        for (all, flushed) in FLUSHED {
            let flushed = values.get(flushed).copied().unwrap_or_default();
            values.entry(all.to_owned()).and_modify(|count| *count = count.saturating_sub(flushed));
        }
        Self(values)
    }

    /// Returns the counters of trouble that are not 0, with their meanings.
    pub fn trouble(&self) -> Vec<(&'static str, u64, &'static str)> {
        let value = |(name, meaning)| Some((name, *self.0.get(name)?, meaning));
        MEANINGS.into_iter().filter_map(value).filter(|(_, value, _)| *value > 0).collect()
    }

    /// Returns the counters of trouble that rose, and by how much; `None` where there are no counters.
    pub fn risen(&self, after: &Self) -> Option<Vec<(&'static str, u64)>> {
        let before = |name| self.0.get(name).copied().unwrap_or_default();
        let rose = |name| Some((name, after.0.get(name)?.saturating_sub(before(name))));
        let risen = MEANINGS.iter().filter_map(|(name, _)| rose(*name)).filter(|(_, by)| *by > 0);
        (!after.0.is_empty()).then(|| risen.collect())
    }

    /// Adds the counters of trouble to the report, and the counters that rose.
    pub fn compare(&self, patient: &mut Patient, port: &str, after: &Self) {
        if after.0.is_empty() {
            return patient.add(Level::Note, format!("{port} counters"), "none in sysfs");
        }
        let mut quiet = true;
        for (name, meaning) in MEANINGS {
            let Some(&now) = after.0.get(name) else { continue };
            let rose = now.saturating_sub(self.0.get(name).copied().unwrap_or_default());
            let what = format!("{port} {name}");
            if rose > 0 {
                let text = format!(
                    "{now}, {rose} of them during the loopback messages (or by other programs meanwhile): {meaning}"
                );
                patient.add(Level::Warning, what, text);
            } else if now > 0 {
                patient.add(Level::Note, what, format!("{now} since the driver was loaded: {meaning}"));
            }
            quiet &= now == 0;
        }
        if quiet {
            patient.add(Level::Ok, format!("{port} counters"), "all counters of trouble are 0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(values: &[(&str, u64)]) -> Counters {
        Counters(values.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
    }

    fn reported(before: &Counters, after: &Counters) -> Vec<(Level, String)> {
        let mut patient = Patient { device: "mlx5_0".into(), checks: Vec::new() };
        before.compare(&mut patient, "port 1", after);
        patient.checks.into_iter().map(|check| (check.level, check.text)).collect()
    }

    #[test]
    fn what_rises_is_a_warning_and_what_is_old_a_note() {
        let before = counters(&[("out_of_buffer", 3), ("link_downed", 1), ("port_rcv_data", 5)]);
        let after = counters(&[("out_of_buffer", 5), ("link_downed", 1), ("port_rcv_data", 9)]);
        let reported = reported(&before, &after);
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert_eq!(before.risen(&after), Some(vec![("out_of_buffer", 2)]));
        assert_eq!(before.risen(&Counters::default()), None);
        assert!(reported[0].0 == Level::Warning && reported[0].1.starts_with("5, 2 of them"), "{reported:?}");
        assert_eq!(reported[1].0, Level::Note);
    }

    #[test]
    fn no_counters_differs_from_no_errors() {
        assert_eq!(reported(&Counters::default(), &Counters::default())[0].0, Level::Note);
        assert_eq!(reported(&counters(&[]), &counters(&[("out_of_buffer", 0)]))[0].0, Level::Ok);
    }
}
