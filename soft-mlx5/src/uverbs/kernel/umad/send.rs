//! Datagrams on their way: from a program to the fabric or to an agent of this device, and the headers that programs
//! see.

use crate::fabric::LinkLayer;
use crate::fabric::address::SWITCH_LID;
use crate::fabric::mad::{Arrived, HEADER, Mad, SIZE, SMI_QPN};
use crate::objects::{AddressVector, Grh, Result};
use crate::uverbs::kernel::Core;
use crate::uverbs::kernel::errno::EINVAL;
use crate::uverbs::kernel::events::FileId;
use crate::uverbs::mad::smp::{self, Way};
use crate::uverbs::mad::{self, sa};

/// Bytes of the header in front of a datagram, without and with the index of a partition key.
const HEADERS: [usize; 2] = [56, 64];
/// Longest write.
pub const LONGEST: usize = HEADERS[1] + SIZE;
/// Shortest datagram: two headers.
const SHORTEST: usize = 36;
const PKEY: u16 = 0xffff;
const ETIMEDOUT: u32 = libc::ETIMEDOUT as u32;
const GRH_HOPS: u8 = 64;

/// A datagram that waits for its answer.
#[derive(Debug, Clone)]
pub struct Sent {
    /// File and agent of the program.
    pub file: FileId,
    /// See `file`.
    pub agent: u32,
    /// Queue pair that it was sent from.
    pub qpn: u32,
    /// The datagram.
    pub mad: Mad,
    /// Time at which the answer is late.
    pub deadline: u64,
    to: AddressVector,
    timeout: u64,
    retries: u32,
    // Header as the program wrote it, which comes back if there is no answer.
    header: Vec<u8>,
}

/// Returns the bytes of the header in front of a datagram.
pub fn header_size(with_pkey: bool) -> usize {
    HEADERS[usize::from(with_pkey)]
}

/// Returns the header of a datagram for a program.
pub fn header(agent: u32, arrived: &Arrived, len: usize, with_pkey: bool) -> Vec<u8> {
    let size = header_size(with_pkey);
    let mut bytes = vec![0; size];
    bytes[..4].copy_from_slice(&agent.to_ne_bytes());
    bytes[16..20].copy_from_slice(&((size + len) as u32).to_ne_bytes());
    bytes[20..24].copy_from_slice(&arrived.source_qpn.to_be_bytes());
    bytes[28..30].copy_from_slice(&arrived.slid.to_be_bytes());
    bytes[30] = arrived.sl;
    if let Some(grh) = arrived.grh {
        let [version, rest @ ..] = *grh.first_chunk::<4>().expect("it has 40 bytes");
        let first = u32::from_be_bytes([version, rest[0], rest[1], rest[2]]);
        bytes[32] = 1;
        bytes[34] = grh[7];
        bytes[35] = (first >> 20) as u8;
        bytes[36..52].copy_from_slice(&grh[8..24]);
        bytes[52..56].copy_from_slice(&(first & 0xf_ffff).to_be_bytes());
    }
    bytes
}

/// Returns the way back to the sender of a datagram.
pub fn way_back(arrived: &Arrived, link: LinkLayer) -> AddressVector {
    let grh = arrived.grh.map(|grh| {
        let mut dgid = [0; 16];
        dgid.copy_from_slice(&grh[8..24]);
        let sgid_index = if link == LinkLayer::Ethernet { 1 } else { 0 };
        Grh { dgid, sgid_index, flow_label: 0, hop_limit: GRH_HOPS, traffic_class: 0 }
    });
    AddressVector { dlid: arrived.slid, sl: arrived.sl, src_path_bits: 0, grh }
}

/// Address, times and datagram of a write.
struct Written {
    agent: u32,
    timeout_ms: u32,
    retries: u32,
    to: AddressVector,
    mad: Mad,
}

impl Written {
    fn parse(bytes: &[u8], with_pkey: bool) -> Result<Self> {
        let size = header_size(with_pkey);
        let data = bytes.get(size..).filter(|data| data.len() >= SHORTEST).ok_or(EINVAL)?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut mad = [0; SIZE];
        mad.get_mut(..data.len()).ok_or(EINVAL)?.copy_from_slice(data);
        let grh = (bytes[32] != 0).then(|| {
            let mut dgid = [0; 16];
            dgid.copy_from_slice(&bytes[36..52]);
            Grh {
                dgid,
                sgid_index: bytes[33],
                flow_label: u32::from_be(word(52)),
                hop_limit: bytes[34],
                traffic_class: bytes[35],
            }
        });
        let to = AddressVector {
            dlid: u16::from_be_bytes([bytes[28], bytes[29]]),
            sl: bytes[30] & 0xf,
            src_path_bits: 0,
            grh,
        };
        Ok(Self { agent: word(0), timeout_ms: word(8), retries: word(12), to, mad })
    }
}

impl Core {
    /// Sends what a program wrote.
    pub(super) fn send_umad(&mut self, id: FileId, bytes: &[u8]) -> Result<()> {
        let file = self.umad.file(id)?;
        let with_pkey = file.with_pkey;
        let mut written = Written::parse(bytes, with_pkey)?;
        let agent = file.agent(written.agent)?;
        let qpn = agent.wanted.qpn();
        let asks = !smp::is_response(&written.mad);
        if asks {
            // Answers find the agent by this.
            written.mad[8..12].copy_from_slice(&agent.transaction.to_be_bytes());
        }
        if qpn == SMI_QPN {
            smp::depart(&mut written.mad);
        }
        let now = self.clock.now();
        let Written { to, mad, .. } = written;
        if asks && written.timeout_ms > 0 {
            let timeout = u64::from(written.timeout_ms) * 1_000_000;
            let mut header = bytes[..header_size(with_pkey)].to_vec();
            header[4..8].copy_from_slice(&ETIMEDOUT.to_ne_bytes());
            self.umad.expect(Sent {
                file: id,
                agent: written.agent,
                qpn,
                mad,
                deadline: now + timeout,
                to,
                timeout,
                retries: written.retries,
                header,
            })?;
        }
        self.emit(qpn, &to, &mad);
        Ok(())
    }

    /// Sends a datagram again, or says that there was no answer.
    pub(super) fn resend_umad(&mut self, mut sent: Sent, now: u64) {
        if sent.retries > 0 {
            sent.retries -= 1;
            sent.deadline = now + sent.timeout;
            let (qpn, to, mad) = (sent.qpn, sent.to, sent.mad);
            if self.umad.expect(sent).is_ok() {
                self.emit(qpn, &to, &mad);
            }
            return;
        }
        let mut bytes = sent.header;
        bytes.extend(&sent.mad[..HEADER]);
        if let Ok(file) = self.umad.file(sent.file) {
            file.push(bytes);
        }
    }

    // Answers what is for this device, the switch or the subnet administrator, and sends everything else.
    fn emit(&mut self, qpn: u32, to: &AddressVector, mad: &Mad) {
        let around = self.surroundings();
        let own = AddressVector { dlid: around.lid, ..*to };
        if qpn == SMI_QPN {
            let (from, answer) = match smp::way(mad, to.dlid, &around) {
                Way::Here => (around.lid, smp::port(mad, &around, around.lid)),
                Way::Switch => (SWITCH_LID, smp::switch(mad, &around)),
                Way::Device(lid) => {
                    let to = AddressVector { dlid: lid, ..*to };
                    self.nic.send_management(&to, qpn, mad);
                    return;
                }
                Way::Lost => return,
            };
            if let Some(answer) = answer {
                self.umad.answered(&local(qpn, from, &answer), &answer);
            }
            return;
        }
        if to.dlid == SWITCH_LID {
            let answered = match mad[1] {
                mad::CLASS_SA => sa::answer(mad, &around),
                _ => mad::refuse(mad).map(|answer| (answer.to_vec(), None)),
            };
            if let Some((answer, change)) = answered {
                self.apply(change);
                self.umad.answered(&local(qpn, SWITCH_LID, mad), &answer);
            }
            return;
        }
        // A port reaches itself also by LID 0.
        let to = if to.dlid == 0 && to.grh.is_none() { &own } else { to };
        self.nic.send_management(to, qpn, mad);
    }
}

fn local(qpn: u32, slid: u16, mad: &Mad) -> Arrived {
    Arrived { qpn, source_qpn: qpn, slid, sl: 0, pkey: PKEY, grh: None, mad: *mad }
}
