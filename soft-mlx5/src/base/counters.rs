//! Counters of a device: of its port, of its transport, and of the faults that it injected.

use super::faults::Faults;

/// Makes a structure of counters that is also a list of their names.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// Returns the counters with their names in sysfs.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($text, self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Counters of the port (`ports/1/counters` in sysfs), since power-up or since PerfMgt set them to 0.
    Port {
        /// Packets sent, with those that were then lost on request.
        xmit_packets "port_xmit_packets",
        /// Words of four bytes in them, from the local route header or Ethernet header to the ICRC.
        xmit_data "port_xmit_data",
        /// Packets received.
        rcv_packets "port_rcv_packets",
        /// Words of four bytes in them.
        rcv_data "port_rcv_data",
        /// Packets sent to one port.
        unicast_xmit_packets "unicast_xmit_packets",
        /// Packets received that were for this port alone.
        unicast_rcv_packets "unicast_rcv_packets",
        /// Packets sent to a group.
        multicast_xmit_packets "multicast_xmit_packets",
        /// Packets received of a group.
        multicast_rcv_packets "multicast_rcv_packets",
        /// Bytes that were not a packet, or failed their ICRC.
        rcv_errors "port_rcv_errors",
        /// Packets whose destination does not exist or had no room, or that found the link down.
        xmit_discards "port_xmit_discards",
        /// Times that the link went down.
        link_downed "link_downed",
    }
}

impl Port {
    /// Returns what was counted since `base`.
    pub(crate) fn since(&self, base: &Self) -> Self {
        Self {
            xmit_packets: self.xmit_packets - base.xmit_packets,
            xmit_data: self.xmit_data - base.xmit_data,
            rcv_packets: self.rcv_packets - base.rcv_packets,
            rcv_data: self.rcv_data - base.rcv_data,
            unicast_xmit_packets: self.unicast_xmit_packets - base.unicast_xmit_packets,
            unicast_rcv_packets: self.unicast_rcv_packets - base.unicast_rcv_packets,
            multicast_xmit_packets: self.multicast_xmit_packets - base.multicast_xmit_packets,
            multicast_rcv_packets: self.multicast_rcv_packets - base.multicast_rcv_packets,
            rcv_errors: self.rcv_errors - base.rcv_errors,
            xmit_discards: self.xmit_discards - base.xmit_discards,
            link_downed: self.link_downed - base.link_downed,
        }
    }
}

/// Counters of a port that sysfs shows and that never count here: the link between devices has no such errors.
pub const ALWAYS_ZERO: [&str; 10] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_wait",
    "symbol_error",
];

/// Counters of the transport that sysfs shows and that never count here: the device neither marks nor obeys congestion,
/// and starts no RoCE transmission slowly.
pub const NEVER_COUNTED: [&str; 9] = [
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
];

counters! {
    /// Counters of the transport (`ports/1/hw_counters` in sysfs), since power-up.
    Hardware {
        /// WRITE requests executed.
        rx_write_requests "rx_write_requests",
        /// READ requests executed.
        rx_read_requests "rx_read_requests",
        /// Atomic requests executed.
        rx_atomic_requests "rx_atomic_requests",
        /// Messages that found no receive WQE.
        out_of_buffer "out_of_buffer",
        /// Requests that came before a request that is missing.
        out_of_sequence "out_of_sequence",
        /// Requests that came again.
        duplicate_request "duplicate_request",
        /// RNR NAKs received.
        rnr_nak_retry_err "rnr_nak_retry_err",
        /// NAKs of sequence errors received.
        packet_seq_err "packet_seq_err",
        /// Answers that are missing, because a later one came.
        implied_nak_seq_err "implied_nak_seq_err",
        /// Timers of unacknowledged requests that expired.
        local_ack_timeout_err "local_ack_timeout_err",
        /// Receives that failed because the message was too long.
        resp_local_length_error "resp_local_length_error",
        /// Error CQEs of receives.
        resp_cqe_error "resp_cqe_error",
        /// Receives that were flushed.
        resp_cqe_flush_error "resp_cqe_flush_error",
        /// Requests refused because a key does not allow them.
        resp_remote_access_errors "resp_remote_access_errors",
        /// Error CQEs of sends.
        req_cqe_error "req_cqe_error",
        /// Sends that were flushed.
        req_cqe_flush_error "req_cqe_flush_error",
        /// Sends that the peer found invalid.
        req_remote_invalid_request "req_remote_invalid_request",
        /// Sends that a key at the peer does not allow.
        req_remote_access_errors "req_remote_access_errors",
        /// Sends that failed after all retries.
        req_transport_retries_exceeded "req_transport_retries_exceeded",
        /// Sends that failed after all RNR retries.
        req_rnr_retries_exceeded "req_rnr_retries_exceeded",
        /// RoCE packets received whose ICRC is wrong.
        rx_icrc_encapsulated "rx_icrc_encapsulated",
    }
}

/// Faults that a device injected, or all devices of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Injected {
    /// Packets that could get lost, doubled, out of order or late.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets sent twice.
    pub doubled: u64,
    /// Packets delayed past later ones.
    pub overtaken: u64,
    /// Messages answered with `receiver not ready`.
    pub rnr: u64,
    /// Send WQEs that failed.
    pub sends: u64,
    /// Received messages that failed.
    pub receives: u64,
    /// QPs taken to error.
    pub qps: u64,
    /// Objects whose destruction failed.
    pub destroys: u64,
    /// Objects that could not be created.
    pub creates: u64,
    /// Times that the port went down.
    pub port_downs: u64,
    /// Devices removed.
    pub removals: u64,
    /// Times that the firmware stopped.
    pub firmware: u64,
}

/// All counters of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The port.
    pub port: Port,
    /// The transport.
    pub hardware: Hardware,
    /// Faults of this device.
    pub injected: Injected,
}

impl Injected {
    /// Returns one line that says what was injected of the faults that were asked for, or `None` if none of them is one
    /// that is counted.
    pub fn summary(&self, faults: &Faults) -> Option<String> {
        let Self { packets, lost, doubled, overtaken, .. } = *self;
        let destroys = faults.fail_destroy != Default::default();
        let limits = [faults.max_qps, faults.max_mkeys, faults.max_map_count];
        let creates = faults.fail_create != Default::default() || limits.iter().any(Option::is_some);
        let parts = [
            (faults.loss > 0.0, format!("{lost} of {packets} packets lost")),
            (faults.duplication > 0.0, format!("{doubled} of {packets} packets doubled")),
            (faults.reordering > 0.0, format!("{overtaken} of {packets} packets overtaken")),
            (faults.rnr > 0.0, format!("{} RNR", self.rnr)),
            (faults.fail_send.is_some(), format!("{} sends failed", self.sends)),
            (faults.fail_receive.is_some(), format!("{} receives failed", self.receives)),
            (faults.qp_fatal.is_some(), format!("{} QPs failed", self.qps)),
            (destroys, format!("{} destructions failed", self.destroys)),
            (creates, format!("{} creations failed", self.creates)),
            (faults.port_flap.is_some(), format!("port down {} times", self.port_downs)),
            (faults.remove_after.is_some(), format!("{} devices removed", self.removals)),
            (faults.fail_firmware.is_some(), format!("{} errors of the firmware", self.firmware)),
        ];
        let said: Vec<_> = parts.into_iter().filter(|(asked, _)| *asked).map(|(_, text)| text).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_was_asked_for() {
        let injected = Injected { packets: 612, lost: 31, rnr: 12, sends: 1, ..Injected::default() };
        let line = |faults: Faults| injected.summary(&faults);
        assert_eq!(line(Faults::default()), None);
        assert_eq!(line(Faults { shuffle_completions: true, ..Faults::default() }), None);
        let lossy = Faults { loss: 0.05, rnr: 0.02, ..Faults::default() };
        assert_eq!(line(lossy).unwrap(), "31 of 612 packets lost, 12 RNR");
        let fail_send = Faults { fail_send: Some(3), ..Faults::default() };
        assert_eq!(line(fail_send).unwrap(), "1 sends failed");
    }

    #[test]
    fn no_counter_has_two_names() {
        let port = Port::default();
        let mut names: Vec<_> = port.named().map(|(name, _)| name).chain(ALWAYS_ZERO).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert_eq!(names.len(), 21);
    }
}
