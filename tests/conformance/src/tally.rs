//! Counts of the work that was done, which a run prints, and the least that a long run must reach.

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    counts: BTreeMap<&'static str, u64>,
    /// File name of the libmlx5 that was compared with.
    pub library: Option<String>,
}

/// Sessions that count it. In the drop-in a receive is over with its completion, tag lists stay with libmlx5, and WQEs
/// are not copied to registers. The rings have one way to post.
#[derive(Clone, Copy, PartialEq)]
pub enum Of {
    Both,
    Rings,
    DropIn,
}

macro_rules! counts {
    ($($name:ident = $text:literal, $least:expr, $of:ident;)*) => {
        $(pub const $name: &str = $text;)*
        /// Each count, and the least per 100,000 operations.
        const COUNTS: &[(&str, u64, Of)] = &[$(($name, $least, Of::$of)),*];
    };
}

counts! {
    OPERATIONS = "operations", 0, Both;
    SESSIONS = "sessions", 100, Both;
    RECEIVES = "receives posted", 100_000, Both;
    MESSAGES = "messages received", 50_000, Both;
    SIZES = "queue sizes, of 16", 16, Both;
    FULL = "posts to a full queue refused", 1_000, Both;
    TOO_LONG = "scatter lists too long refused", 1_000, Both;
    ERRORS = "receives completed in error", 1_000, Both;
    OUT_OF_ORDER = "completions out of order", 100, Both;
    RECYCLED = "slots recycled", 10_000, Rings;
    TAKEN = "slots given back empty", 10_000, Both;
    HELD = "messages held", 200, Rings;
    WAITED = "buffers that waited for a slot", 100, Rings;
    RESETS = "queue pairs reset", 1_000, Both;
    PURGED = "completions purged by a reset", 100, Both;
    RING_LAPS = "laps of a receive queue", 1_000, Both;
    SRQ_LAPS = "laps of an SRQ", 1_000, Both;
    CQ_LAPS = "laps of a CQ", 1_000, Both;
    RING_WRAPS = "wraps of a receive queue's 16-bit counter", 3, Both;
    SRQ_WRAPS = "wraps of an SRQ's 16-bit counter", 3, Both;
    ARMED = "CQs armed", 1_000, Both;
    TAG_ADDS = "tags added", 3_000, Rings;
    TAG_ADDS_SILENT = "tags added without a CQE", 1_000, Rings;
    TAG_ADDS_EMPTY = "tags added without a buffer", 300, Rings;
    TAG_DELS = "tags removed", 1_000, Rings;
    TAG_DELS_LATE = "removes that a message was faster than", 80, Rings;
    TAG_SYNCS = "synchronisations", 1_000, Rings;
    TAG_SYNCS_SILENT = "synchronisations without a CQE", 400, Rings;
    TAG_COUNTED = "list operations with a count of unexpected messages", 3_000, Rings;
    TAG_UNCOUNTED = "list operations without one", 1_500, Rings;
    TAG_MATCHED = "messages matched", 1_000, Rings;
    TAG_UNEXPECTED = "messages unexpected", 1_500, Rings;
    TAG_NO_TAG = "messages without tag", 500, Rings;
    TAG_RENDEZVOUS = "rendezvous matched", 300, Rings;
    TAG_FULL = "adds to a full tag list refused", 1_000, Rings;
    TAG_OPERATIONS_FULL = "list operations that libmlx5's command queue had no room for", 200, Rings;
    TAG_REFUSED = "removes of what is over refused", 150, Rings;
    TAG_SYNC_REQUIRED = "completions that ask for a synchronisation", 300, Rings;
    TAG_WRAPS = "wraps of the command queue's 16-bit index", 4, Rings;
    PHASE_WRAPS = "wraps of the count of unexpected messages", 2, Rings;
    SEND_SENDS = "SENDs posted", 1_000, Both;
    SEND_WRITES = "RDMA WRITEs posted", 1_000, Both;
    SEND_READS = "RDMA READs posted", 500, Both;
    SEND_ATOMICS = "atomics posted", 500, Both;
    SEND_CHANGES = "memory windows bound, unbound and invalidated", 50, Both;
    SEND_DATAGRAMS = "datagrams posted", 500, Both;
    SEND_INLINE = "requests with inline bytes", 1_000, Both;
    SEND_BUILT = "sends posted with ibv_wr_*", 1_000, DropIn;
    SEND_DONE = "sends completed with a CQE", 1_000, Both;
    SEND_DONE_SILENT = "sends completed without one", 500, Both;
    SEND_FAILED = "sends that failed", 20, Both;
    SEND_FLUSHED = "sends flushed", 100, Both;
    SEND_RESETS = "queue pairs of sends reset", 100, Both;
    SEND_FULL = "requests that libmlx5's send queue had no room for", 500, Both;
    SEND_COPIED = "WQEs copied to a register", 500, Rings;
    SEND_WRAPS = "wraps of a send queue's 16-bit index", 3, Both;
    OPAQUE_DMA_BUF = "requests and messages of a dma-buf", 1_000, Both;
    OPAQUE_TRANSLATED = "requests and messages at an address of the device", 1_000, Both;
    OPAQUE_ADAPTER = "requests and messages of memory of the adapter", 1_000, Both;
    OPAQUE_MESSAGES = "messages received into such memory", 1_000, Both;
    OPAQUE_SENDS = "SENDs and datagrams posted from such memory", 100, Both;
    OPAQUE_WRITES = "RDMA WRITEs posted from and to such memory", 100, Both;
    OPAQUE_READS = "RDMA READs posted from and to such memory", 100, Both;
    OPAQUE_ATOMICS = "atomics posted from and to such memory", 100, Both;
    REGISTERS = "writes to UAR registers compared", 10_000, Both;
    EXACT = "bytes of queues, records and CQEs compared one by one", 10_000_000, Both;
    VIEWED = "bytes of WQEs compared in the device's order", 1_000_000, Both;
    PAYLOAD = "bytes of message memory compared", 100_000_000, Both;
    FREE_SLOT = "masked: bytes of slots that the device may not read", 0, Both;
    STALE = "masked: bytes that libmlx5 leaves as they were in a list operation", 0, Both;
    SEND_STALE = "masked: bytes of send WQEs that libmlx5 leaves as they were", 0, Both;
    BLUE_FLAME = "masked: bytes behind the doorbell that libmlx5 writes to a register", 0, Both;
    COMMAND_QPN = "masked: bytes that name the command queue pair", 0, Both;
    EITHER_ERROR = "masked: which of two errors a refused receive has", 0, Both;
}

impl Tally {
    pub fn add(&mut self, name: &'static str, count: u64) {
        let entry = self.counts.entry(name).or_default();
        // A set of powers of two.
        *entry = if name == SIZES { *entry | count } else { *entry + count };
    }

    pub fn get(&self, name: &str) -> u64 {
        let count = self.counts.get(name).copied().unwrap_or(0);
        if name == SIZES { count.count_ones().into() } else { count }
    }

    /// Bytes compared, in all ways.
    pub fn bytes(&self) -> u64 {
        [EXACT, VIEWED, PAYLOAD].iter().map(|name| self.get(name)).sum()
    }

    /// One line per count, for another process.
    pub fn lines(&self) -> String {
        self.counts.iter().map(|(name, count)| format!("{name}={count}\n")).collect()
    }

    /// Takes a line of [`lines`](Self::lines); `false` when it is something else.
    pub fn take(&mut self, line: &str) -> bool {
        let Some((name, count)) = line.split_once('=') else { return false };
        let known = COUNTS.iter().find(|(known, ..)| *known == name);
        match (known, count.parse()) {
            (Some((name, ..)), Ok(count)) => {
                self.add(name, count);
                true
            }
            _ => false,
        }
    }

    /// The table that is printed at the end.
    pub fn table(&self) -> String {
        COUNTS.iter().map(|(name, ..)| format!("{:>14}  {name}\n", self.get(name))).collect()
    }

    /// Counts that a run of this many operations should have exceeded.
    pub fn missing(&self, sessions: Of) -> Vec<String> {
        let operations = self.get(OPERATIONS);
        let shares = operations / 100_000;
        if shares == 0 {
            return Vec::new();
        }
        let too_few = |(name, least, _): &(&'static str, u64, Of)| {
            let least = if *name == SIZES { *least } else { least * shares };
            let count = self.get(name);
            (count < least).then(|| format!("{name}: {count}, at least {least} expected"))
        };
        let wanted = COUNTS.iter().filter(|(.., of)| [Of::Both, sessions].contains(of));
        wanted.filter_map(too_few).collect()
    }
}
