//! The texts of all errors, as `error_texts.txt` lists them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::tags::*;
use crate::*;

/// Lists each error by its name.
macro_rules! texts {
    ($($name:ident $(:: $variant:ident)? $(($value:expr))? $({$($fields:tt)*})?,)*) => {
        vec![$((
            concat!(stringify!($name) $(, "::", stringify!($variant))?),
            $name $(::$variant)? $(($value))? $({$($fields)*})?.to_string(),
        )),*]
    };
}

fn texts() -> Vec<(&'static str, String)> {
    let errno = libc::ENOMEM;
    let os = || std::io::Error::from_raw_os_error(errno);
    let name = || "mlx5_0".to_owned();
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 0, 0, 1];
    let timestamp = Timestamp::new(0x1234, crate::clock::TimestampClock::Counter(1));
    texts![
        Error::NoDevice,
        Error::NoProvider { devices: name() },
        Error::NoGid { device: name(), port: 1, index: 5 },
        Error::PortDown { device: name(), port: 1, state: "down" },
        Error::UnknownDevice { name: "mlx5_9".to_owned(), present: name() },
        Error::Verbs { operation: "ibv_query_port", device: name(), source: os() },
        Error::NotDirect { device: name(), reason: NotDirect::NotMlx5 },
        Error::OutOfRange { what: "port", value: 3, min: 1, max: 2 },
        Error::NotPowerOfTwo { what: "strides of a buffer", value: 700, min: 512, max: 8192 },
        Error::CqTooSmall { setting: "capacity in CqConfig::new", needed: 512, capacity: 256, new: 128 },
        Error::CqFailed,
        Error::NotPosted { posted: 2, reason: PostFailure::Full },
        Error::NoRoomForHeader { capacity: 40 },
        Error::Foreign { what: "the pool", domain: "protection domain" },
        Error::InUse { what: "SRQ", users: "queue pairs", action: "destroy the queue pairs, and poll their senders" },
        Error::Gone { what: "SRQ" },
        Error::Unsupported { operation: "connect", when: "for datagrams: use activate" },
        Error::WrongState { operation: "connect", qp_num: 0x40, state: QpState::Error, needed: QpState::Init },
        Error::NotMulticast { operation: "join", gid: [1; 16] },
        Error::AlreadyMember { qp_num: 0x40, gid: group },
        Error::NotMember { qp_num: 0x40, gid: group },
        Error::SilentPeer { received: 7, expected: 32 },
        Error::Handshake("its address has no GID, and this port needs one".to_owned()),
        Error::Rejected { peer: "192.0.2.1:7000".to_owned(), reason: 8, private_data: Vec::new() },
        Error::NeedsNetRaw { operation: "ibv_create_qp", device: name() },
        Error::TimedOut { operation: "drain_qp", subject: "QP 0x40 (event LAST_WQE_REACHED)".to_owned() },
        Error::Io(os()),
        NotDirect::NotMlx5,
        NotDirect::Library("libmlx5.so.1 is missing".to_owned()),
        NotDirect::Signature("MLX5_SRQ_SIGNATURE"),
        NotDirect::InitObj(errno),
        NotDirect::Layout("stride of 12 bytes".to_owned()),
        WrongClock { timestamp },
        PostFailure::Full,
        PostFailure::TooManyBuffers { given: 3, max: 1 },
        PostFailure::NoBuffer,
        PostFailure::WrongDomain,
        PostFailure::NoQueue,
        PostFailure::NoRoomForHeader { capacity: 40 },
        PostFailure::Scattered,
        Scattered,
        PostFailure::Verbs(errno),
        PostError { posted: 0, reason: PostFailure::NoBuffer, buffers: Vec::<Buffer>::new() },
        Failure { qp_num: 0x40, cause: Cause::Stray, first: None, vendor_err: 0, buffers: Vec::<Buffer>::new() },
        SendFailure {
            queue: crate::ids::SqId::NONE,
            qp_num: 0x40,
            token: 7,
            status: WcStatus::REM_ACCESS_ERR,
            first: None,
            vendor_err: 0x88,
            buffers: Vec::new(),
        },
        Cause::Status(WcStatus::LOC_LEN_ERR),
        Cause::Stray,
        Cause::PageFault,
        Cause::NotAReceive,
        Cause::DeviceRemoved,
        Cause::Raw(7),
        NotSent::Full { waited: Duration::ZERO },
        NotSent::State(QpState::Init),
        NotSent::InlineTooLong { len: 300, max: 220 },
        NotSent::BufferTooSmall { len: 300, capacity: 220 },
        NotSent::TooLong { len: 0x8000_0000, max: 0x4000_0000 },
        NotSent::Runt { len: 14, min: 15 },
        NotSent::WrongDomain,
        NotSent::Transport,
        NotSent::NoQueue,
        NotSent::TooManyBuffers { max: 4 },
        NotSent::OutOfBounds { len: 64, max: 32 },
        NotSent::NotANumber,
        NotSent::WindowOutside { start: 4000, end: 5000, len: 4096 },
        NotSent::NoWindows { what: "queue pair", setting: "QpConfig::memory_windows" },
        NotSent::WindowBound { rkey: 0x1805 },
        NotSent::WindowNotBound,
        NotSent::WindowLost,
        NotSent::WindowAccess,
        NotSent::Verbs(os()),
        AddressError::Version(9),
        AddressError::Mtu(300),
        AddressError::TooLarge { what: "qpn", value: 1 << 24 },
        AddressError::Parts(3),
        AddressError::Number("LID"),
        ReceiveFailure::TooLong { len: 5 },
        ReceiveFailure::Dropped,
        ReceiveFailure::Read(WcStatus::REM_ACCESS_ERR),
        ReceiveFailure::PeerGone,
        ReceiveFailure::Malformed,
        TagFailure::ListFull,
        TagFailure::Mask { tag: 0x17, mask: 0xf },
        TagFailure::WrongDomain,
        TagFailure::TooSmall { min: 32 },
        TagFailure::Held,
        TagFailure::Broken(ListFailure::Verbs(errno)),
        TagFailure::Verbs(errno),
        ListFailure::Status(WcStatus::LOC_QP_OP_ERR),
        ListFailure::Verbs(errno),
        CancelError::Over,
        CancelError::Cancelling,
        CancelError::Matched,
        CancelError::WrongQueue,
        CancelError::Broken(ListFailure::Verbs(errno)),
        CancelError::Verbs(errno),
        NotSentTagged::NoPeer,
        NotSentTagged::NotReadable,
        NotSentTagged::Queue(NotSent::Full { waited: Duration::from_millis(70) }),
        WrongCqe { cqn: 0x400, index: 9, bytes: [0; 64] },
    ]
}

/// A change of a text also changes the list, which shows the other texts beside it.
#[test]
fn each_error_has_the_text_that_is_listed() {
    let listed = include_str!("error_texts.txt");
    let texts: String = texts().iter().map(|(name, text)| format!("{name}: {text}\n")).collect();
    if texts != listed {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("target/error_texts.txt"), &texts).unwrap();
        panic!("compare target/error_texts.txt with src, and copy it there if the texts are meant so");
    }
}

/// How often `#[error(` occurs below a folder.
fn attributes(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let count = |path: std::path::PathBuf| match path.is_dir() {
        true => attributes(&path),
        false => {
            fs::read_to_string(&path).unwrap().lines().filter(|line| line.trim_start().starts_with("#[error(")).count()
        }
    };
    entries.map(count).sum()
}

/// A new variant is missing in the list until it is added.
#[test]
fn no_error_is_missing() {
    // `Error::Library` shows the text of the loader. `UnknownDataPath` has a private field. `PostTagsError` needs the
    // receives of a device. `WrongCqe` has no attribute.
    let elsewhere = 3;
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(texts().len() - 1 + elsewhere, attributes(&src));
}
