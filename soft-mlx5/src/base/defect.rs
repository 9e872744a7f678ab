//! The rules that a device can break on request.

macro_rules! defects {
    ($($variant:ident $name:literal, $help:literal;)*) => {
        /// A rule that the device breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Defect {
            $(#[doc = $help] $variant,)*
        }

        impl Defect {
            /// All defects.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name, as on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns what is wrong with the device.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

defects! {
    SwappedAddress "swapped-address", "Addresses in receive WQEs are read with their halves swapped";
    SrqOrder "srq-order", "The links of an SRQ are ignored: the next slot is the one after";
    StaleRecord "stale-record", "The last receive that a doorbell record covers is not seen";
    SegmentOrder "segment-order", "The data segments of a receive are used from the last to the first";
    Payload "payload", "The last byte of each message is changed";
    Immediate "immediate", "Immediate data come with their bytes swapped";
    ByteCount "byte-count", "CQEs of receives count a byte too many";
    LateCqe "late-cqe", "Each 40th CQE of a receive is written after the one that follows";
    TornCqe "torn-cqe", "The last 8 bytes of a CQE are written first, the others after a pause";
    Signature "signature", "The signature of each CQE is wrong";
    FewSignatures "few-signatures", "The signature of each 40th CQE is wrong";
    Counter "counter", "CQEs of receives name the WQE after theirs";
    Owner "owner", "The owner bit of each CQE is that of the other lap";
    Opcode "opcode", "A SEND is reported as one with immediate data";
    QpNumber "qp-number", "CQEs name the queue pair after theirs";
    Clock "clock", "Timestamps run backwards";
    Syndrome "syndrome", "Each error but a flush is reported as a local QP operation error";
    Vendor "vendor", "Vendor syndromes are others";
    LostFlush "lost-flush", "Receives of a failed queue pair are not flushed";
    LostLimit "lost-limit", "The event of an SRQ's limit is lost";
    LostLastWqe "lost-last-wqe", "The event of the last WQE is lost";
    LostEvent "lost-event", "Completion events are lost";
    EarlyEvent "early-event", "Arming a CQ raises its event at once";
    Unsolicited "unsolicited", "No CQE of a message is solicited";
    LostWrite "lost-write", "The bytes of each 40th message are not written";
    DoubleCqe "double-cqe", "Each 40th CQE of a receive is written twice";
    MiniCqes "mini-cqes", "The halves of mini CQEs are swapped";
    WriteBytes "write-bytes", "The last byte of each packet of a WRITE is changed";
    ReadBytes "read-bytes", "The last byte of each packet that answers a READ is changed";
    Swap "swap", "Compare and swap does not compare";
    Fetch "fetch", "Atomics return the value after them";
    Fence "fence", "Fences are ignored";
    GatherOrder "gather-order", "The data segments of a SEND are used from the last to the first";
    RingEnd "ring-end", "The part of a send WQE beyond the end of its ring is read as zeros";
    SilentFlush "silent-flush", "Requests of a failed queue pair are not flushed";
    NoRetry "no-retry", "A sender that meets no receive does not try again";
    LostResize "lost-resize", "The first CQE after a resize of its CQ is lost";
    KeptKey "kept-key", "A SEND with invalidate leaves the key as it is";
    Verdict "verdict", "The checksums of each frame are called right";
    Vlan "vlan", "The tag that was removed from a frame is another";
    Hash "hash", "Frames are spread by the time of their arrival";
    MaskedId "masked-id", "CQEs of striding queues name WQEs modulo the size of the queue";
    PortDown "port-down", "The port has no link";
    TagOrder "tag-order", "A message takes the youngest entry that matches, not the oldest";
    TagMask "tag-mask", "Masks of tag-list entries are ignored";
    TagPhase "tag-phase", "What software says of unexpected messages is ignored";
}
