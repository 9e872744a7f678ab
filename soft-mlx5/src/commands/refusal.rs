//! Refusals of commands: a status of the interface, and a syndrome that names the reason.

use mlx5_wire::firmware::command::Status;

use crate::objects::Errno;

/// A refused command. The syndromes are numbers of this device; an adapter has numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Status.
    pub status: Status,
    /// Number of the reason.
    pub syndrome: u32,
    /// Reason.
    pub reason: &'static str,
}

macro_rules! refusals {
    ($( $name:ident = $status:ident, $syndrome:literal, $reason:literal; )*) => {
        impl Refusal {
            $(
                #[doc = concat!($reason, ".")]
                pub const $name: Self =
                    Self { status: Status::$status, syndrome: $syndrome, reason: $reason };
            )*

            /// All refusals.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];
        }
    };
}

refusals! {
    UNKNOWN_COMMAND = BadOp, 0x1001, "The device has no such command";
    UNKNOWN_MODIFIER = BadOp, 0x1002, "The command has no such modifier";
    INPUT_LENGTH = BadInputLength, 0x1003, "The input is shorter than the command";
    PAGE_LIST = BadInputLength, 0x1004, "The page list is shorter than the memory it describes";
    OUTPUT_LENGTH = BadOutputLength, 0x1005, "The answer is longer than its room";
    STATE = BadSystemState, 0x1006, "The function is not in the state that the command needs";
    ENABLED = BadSystemState, 0x1007, "The function is enabled";
    FUNCTION = BadParam, 0x1008, "The function has no other functions";
    ISSI = BadParam, 0x1009, "The version of the interface is not supported";
    PAGES = BadParam, 0x100a, "The device did not ask for pages";
    GROUP = BadParam, 0x100b, "There is no such group of capabilities";
    CAPABILITY = BadParam, 0x100c, "A capability would be above its maximum";
    PROFILE = BadParam, 0x100d, "The function cannot be torn down in this way";

    NO_USER = BadParam, 0x1101, "There is no such user";
    NO_OBJECT = BadResource, 0x1102, "The number names no object of this kind";
    OWNER = BadResource, 0x1103, "The object belongs to another user";
    IN_USE = BadResourceState, 0x1104, "Other objects refer to the object";
    TOO_MANY = Limit, 0x1105, "There are as many objects of this kind as the capabilities allow";
    NO_RESOURCES = NoResources, 0x1106, "The device has no room for another object";

    PAGE_SIZE = BadParam, 0x1201, "The page size is out of range";
    MEMORY = BadParam, 0x1202, "The memory is not there, or the device may not write there";
    UMEM_RANGE = BadParam, 0x1203, "The memory reaches past the end of the UMEM";
    RECORD = BadParam, 0x1204, "The doorbell record is not aligned to eight bytes";
    QUEUE_SIZE = BadParam, 0x1205, "The size of the queue is out of range";
    ATTRIBUTES = BadParam, 0x1206, "The device does not support these attributes";
    VECTOR = BadParam, 0x1207, "There is no such interrupt vector";
    CQE_SIZE = BadParam, 0x1208, "CQEs have 64 or 128 bytes";
    CQE_MODE = BadParam, 0x1209, "The device does not compress these CQEs";
    FIELDS = BadParam, 0x120a, "The command cannot change these fields";
    UNREAD = BadParam, 0x120b, "More CQEs wait than the new buffer holds";
    OVERRUN = BadResourceState, 0x120c, "The CQ has no room for the CQE that ends the old buffer";

    SERVICE = BadParam, 0x1301, "The device has no queue pairs of this service";
    RQ_TYPE = BadParam, 0x1302, "The device has no receive queues of this kind";
    QP_STATE = BadQpState, 0x1303, "The queue pair is in another state";
    PORT = BadParam, 0x1304, "There is no such port";
    PKEY_INDEX = BadIndex, 0x1305, "The table of partition keys has no such entry";
    GID_INDEX = BadIndex, 0x1306, "The table of GIDs has no such entry";
    MTU = BadParam, 0x1307, "The path MTU is not 256 to 4096 bytes";
    GROUP_ADDRESS = BadParam, 0x1308, "Only UD queue pairs join groups, and only groups of multicast";
    MEMBER = BadParam, 0x1309, "The queue pair is not in the group";
    ACCESS_MODE = BadParam, 0x130a, "The device has no memory keys of this kind";
    KEY_RANGE = BadParam, 0x130b, "The memory key reaches past the end of the address space";
    WQ_KIND = BadParam, 0x130c, "The device has no work queues of this kind";
    WQ_STATE = BadResourceState, 0x130d, "The queue is in another state";
    STREAM = BadParam, 0x130e, "The queue pair has no such stream in error";
    GENERAL_OBJECT = BadParam, 0x130f, "The device has no general objects of this kind";

    REGISTER = BadParam, 0x1401, "There is no such register";
    LINK_LAYER = BadParam, 0x1402, "The port has another link layer";
    TABLE = BadParam, 0x1403, "The flow table, group or entry cannot be as described";
    LEVEL = BadParam, 0x1404, "A flow table leads to tables of higher levels only";
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        match error.0 {
            libc::ENOMEM => Self::NO_RESOURCES,
            libc::EBUSY => Self::IN_USE,
            libc::EFAULT => Self::MEMORY,
            _ => Self::ATTRIBUTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_syndrome() {
        let mut syndromes: Vec<u32> = Refusal::ALL.iter().map(|refusal| refusal.syndrome).collect();
        syndromes.sort_unstable();
        syndromes.dedup();
        assert_eq!(syndromes.len(), Refusal::ALL.len());
        assert!(Refusal::ALL.iter().all(|refusal| refusal.status != Status::Ok));
    }
}
