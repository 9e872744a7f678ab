//! The dumps in `dumps.txt`: bytes that mlx5 adapters wrote or read, where they were published, and the reports about
//! them.

use std::sync::OnceLock;

/// The file, with the description of its format.
pub const TEXT: &str = include_str!("../dumps.txt");

/// A CQE or WQE that was published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    /// Name in the collection.
    pub name: String,
    /// Whether it is a CQE.
    pub is_cqe: bool,
    /// Where it was published.
    pub source: String,
    /// Which program printed it.
    pub printer: String,
    /// The message of the report.
    pub printed: Option<String>,
    /// Index in the CQ, where it is known.
    pub counter: Option<u32>,
    /// Fields that were read by eye.
    pub fields: Option<Fields>,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Fields of an error CQE, read by eye.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// `REQ_ERR` or `RESP_ERR`.
    pub opcode: String,
    /// Owner bit.
    pub owner: u8,
    /// Syndrome.
    pub syndrome: u8,
    /// Vendor syndrome.
    pub vendor: u8,
    /// `hw_err_synd`.
    pub hw_err_synd: u8,
    /// `hw_synd_type`.
    pub hw_synd_type: u8,
    /// Opcode of the send WQE.
    pub send_opcode: u8,
    /// Number of the queue pair.
    pub qpn: u32,
    /// `wqe_counter`.
    pub wqe_counter: u16,
    /// User index.
    pub user_index: u32,
}

impl Dump {
    /// Returns the bytes of a CQE.
    pub fn cqe(&self) -> [u8; 64] {
        self.bytes.as_slice().try_into().expect("64 bytes")
    }
}

/// Returns all of them.
pub fn dumps() -> &'static [Dump] {
    static DUMPS: OnceLock<Vec<Dump>> = OnceLock::new();
    DUMPS.get_or_init(|| {
        let stanzas = TEXT.split("\n\n").filter(|stanza| !stanza.starts_with('#'));
        stanzas.map(|stanza| parse(stanza).unwrap_or_else(|| panic!("dumps.txt: {stanza}"))).collect()
    })
}

/// A CQE of a bundle, with its index in its CQ.
pub type Indexed = (u32, [u8; 64]);

/// Returns the name of each bundle of `doorbell selftest` in `bundles`, and its CQEs.
pub fn bundles() -> Vec<(&'static str, Vec<Indexed>)> {
    let texts = [("soft-mlx5", include_str!("../bundles/soft-mlx5.txt"))];
    let all = texts.map(|(name, text)| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("cqe "));
        (name, lines.map(|line| indexed(line).unwrap_or_else(|| panic!("{name}: {line}"))).collect())
    });
    all.into()
}

fn indexed(line: &str) -> Option<Indexed> {
    let words: Vec<&str> = line.split(' ').collect();
    let [_, _, index, hex] = words[..] else { return None };
    let index = u32::from_str_radix(index.strip_prefix("0x")?, 16).ok()?;
    let mut bytes = [0; 64];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some((index, bytes))
}

/// Returns the error CQEs.
pub fn cqes() -> impl Iterator<Item = &'static Dump> {
    dumps().iter().filter(|dump| dump.is_cqe)
}

fn parse(stanza: &str) -> Option<Dump> {
    let mut dump = Dump::default();
    for line in stanza.lines() {
        let (key, value) = line.split_once(' ')?;
        match key {
            "cqe" | "wqe" => (dump.is_cqe, dump.name) = (key == "cqe", value.to_owned()),
            "source" => dump.source = value.to_owned(),
            "printer" => dump.printer = value.to_owned(),
            "said" => dump.printed = (value != "-").then(|| value.to_owned()),
            "counter" => dump.counter = Some(u32::from_str_radix(value.strip_prefix("0x")?, 16).ok()?),
            "fields" => dump.fields = Some(fields(value)?),
            "bytes" => {
                let number = |at| u8::from_str_radix(value.get(at..at + 2)?, 16).ok();
                dump.bytes = (0..value.len()).step_by(2).map(number).collect::<Option<_>>()?;
            }
            _ => return None,
        }
    }
    Some(dump)
}

fn fields(line: &str) -> Option<Fields> {
    let words: Vec<&str> = line.split([' ', '/']).collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    Some(Fields {
        opcode: (*words.first()?).to_owned(),
        owner: number(1)? as u8,
        syndrome: number(2)? as u8,
        vendor: number(3)? as u8,
        hw_err_synd: number(4)? as u8,
        hw_synd_type: number(5)? as u8,
        send_opcode: number(6)? as u8,
        qpn: number(7)?,
        wqe_counter: number(8)? as u16,
        user_index: number(9)?,
    })
}
