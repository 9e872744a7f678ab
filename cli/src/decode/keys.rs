//! The grammar of reports: a key, a separator and a value. One table has the synonyms of all programs.

use std::sync::OnceLock;

use super::words::{Names, Word};

/// A key of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Status,
    Syndrome,
    Vendor,
    Qp,
    /// Opcode and queue in one word, as a CQE has them.
    Packed,
    Counter,
    Ci,
    /// The first line of a report whose numbers follow.
    Head,
    HwError,
    HwType,
    /// The upper half of the type, a slash, and the error.
    Hardware,
    /// Opcode of the WQE.
    Opcode,
    /// An opcode of which the number alone does not say whether it is one of a WQE, a CQE or verbs.
    AnyOpcode,
    /// A key that is not read; its words belong to no other key.
    Other,
}

/// The names of each key, in small letters, as sequences of words.
const KEYS: &[(Key, &str)] = &[
    (Key::Syndrome, "syndrome, syndrom, synd, syn, cqe err, err synd, ibgda poll cq failed with error"),
    (
        Key::Vendor,
        "vendor err synd, vendor error syndrome, vendor err syndrome, vendor syndrome, vendor synd, vendor error",
    ),
    (
        Key::Vendor,
        "vendor err, vendor error code, vendor err code, vendor code, vendor, vend err synd, vend err, vend error",
    ),
    (Key::Vendor, "vend synd, vend, ves"),
    (Key::Status, "status, status number, status code, wc status, wc error, wc err, cqe with error, completion status"),
    (
        Key::Status,
        "completion error, completion with error, completion with error code, completion with status, with error, with status",
    ),
    (Key::Qp, "qp, qp num, qpnum, qp number, qp no, qp id, qpn, sqn, qn, local qpn, local qp, local qp num"),
    (Key::Packed, "wqe qpn, s wqe opcode qpn"),
    (Key::Counter, "wqe counter, wqe cnt, wqe index, wqe idx, wqe, indx"),
    (Key::HwError, "hw err synd, hw error syndrome, hw syndrome, hw synd err, hardware syndrome, hw err, hw, hws"),
    (Key::HwType, "hw synd type, hw type"),
    (Key::Hardware, "hw synd"),
    (Key::Opcode, "op, wqe opcode, opcode of the wqe"),
    (Key::AnyOpcode, "opcode"),
    (Key::Ci, "ci"),
    (Key::Head, "error cqe on cqn"),
    (Key::Other, "qp state, qp idx, qp index, qp type, vendor id, vendor part id, op mod, op own, cq ci, wq ci"),
    (Key::Other, "exit status, failed with error, non zero status, port status, link status, http status"),
];

/// Returns the longest key with which the words begin, and the number of its words.
pub fn key_at(words: &[Word]) -> Option<(usize, Key)> {
    static NAMES: OnceLock<Names<(Key, &str)>> = OnceLock::new();
    NAMES.get_or_init(|| Names::new(KEYS, |row| row.1)).longest(words).map(|(len, row)| (len, row.0))
}

/// A number of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// The number, where digits without a prefix are decimal.
    pub value: u32,
    /// The number has no prefix, and no digit that only a hexadecimal number has.
    pub bare: bool,
}

impl Number {
    /// Returns what it means, and what it means if its digits are hexadecimal.
    pub fn readings(self) -> impl Iterator<Item = u32> {
        let hex = self.bare.then(|| u32::from_str_radix(&self.value.to_string(), 16).ok()).flatten();
        [Some(self.value), hex.filter(|&hex| hex != self.value)].into_iter().flatten()
    }
}

/// Reads the value of a key, which may stand in a type (`U32(7)`). Returns the number of its words, too.
pub fn value_at(words: &[Word]) -> Option<(usize, Number)> {
    let first = words.first().filter(|word| separates(word.gap))?;
    if let Some(number) = number(first) {
        return Some((1, number));
    }
    let inner = words.get(1).filter(|word| word.gap == "(")?;
    number(inner).map(|number| (2, number))
}

fn number(word: &Word) -> Option<Number> {
    if let Some((number, bare)) = word.number() {
        return u32::try_from(number).ok().map(|value| Number { value, bare });
    }
    // Digits that can only be hexadecimal; a word of them alone may be English.
    let digits = word.text.bytes().all(|byte| byte.is_ascii_hexdigit())
        && (word.text.len() <= 2 || word.text.bytes().any(|byte| byte.is_ascii_digit()));
    let value = word.hex().filter(|_| digits).and_then(|number| u32::try_from(number).ok())?;
    Some(Number { value, bare: false })
}

/// Returns `true` if these characters may stand between a key and its value.
pub fn separates(gap: &str) -> bool {
    gap.len() <= 8 && gap.chars().all(|c| " \t:=([#\"'".contains(c))
}

/// Words by which a program is known; the first that a line contains decides.
const PRINTERS: &[(&str, &str)] = &[
    ("vrb_report_wc_error", "libfabric"),
    ("NET/IB", "NCCL"),
    ("NCCL", "NCCL"),
    ("mlx5_cqe_err", "SPDK"),
    ("ib_mlx5_log", "UCX"),
    (" hw_synd ", "UCX"),
    ("(synd 0x", "UCX"),
    ("end completion with error", "UCX"),
    (" UCX ", "UCX"),
    ("btl_openib", "Open MPI"),
    ("nvmf_", "SPDK"),
    ("nvme_rdma", "SPDK"),
    ("rror on CQ 0x", "SPDK"),
    ("s_wqe_opcode_qpn=", "NVSHMEM"),
    ("nvshmem", "NVSHMEM"),
    ("ibgda", "NVSHMEM"),
    ("ibdevx completion", "NVSHMEM"),
    ("worker_pool.cpp", "Mooncake"),
    ("rdma_endpoint.cpp", "Mooncake"),
    ("Process failed for slice", "Mooncake"),
    ("opcode=REQ_ERR", "doorbell"),
    ("opcode=RESP_ERR", "doorbell"),
    ("wqe_qpn", "DOCA"),
    ("got completion with err: ", "DOCA"),
    ("VMA ", "VMA"),
    ("XLIO ", "XLIO"),
    ("rdma_context.cpp", "Mooncake"),
    ("libibverbs: ", "libibverbs"),
    ("mlx5_crypto", "DPDK"),
    ("mlx5_net", "DPDK"),
    ("mlx5_common", "DPDK"),
    ("mlx5dr_", "DPDK"),
    ("nexpected CQE error syndrome", "DPDK"),
    ("Failed status", "perftest"),
    ("CQE ERR: cqe", "the Solaris driver"),
    ("rror cqe on cqn", "the kernel"),
    ("mlx5_handle_error_cqe", "mlx5_ib"),
    ("WC error: ", "mlx5_ib"),
];

/// Returns the program that prints such a line.
pub fn printer(text: &str) -> Option<&'static str> {
    PRINTERS.iter().find(|known| text.contains(known.0)).map(|known| known.1)
}
