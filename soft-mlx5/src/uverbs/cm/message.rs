//! Messages of communication management, class version 2 (InfiniBand specification, volume 1, chapter 12).

use crate::fabric::mad::{CLASS_CM, HEADER, Header, Mad, SIZE};

const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// Bytes of private data that a REQ has room for.
pub const REQ_DATA: usize = 92;
/// Bytes of private data that a REP has room for.
pub const REP_DATA: usize = 196;
/// Bytes of private data that a REJ has room for.
pub const REJ_DATA: usize = 148;
/// Bytes of private data that a SIDR_REQ has room for.
pub const SIDR_REQ_DATA: usize = 216;
/// Bytes of private data that a SIDR_REP has room for.
pub const SIDR_REP_DATA: usize = 136;

/// Private data, padded with zeros to the room of its message.
pub type Data<const N: usize> = [u8; N];

/// Pads private data; what does not fit is cut off.
pub fn padded<const N: usize>(data: &[u8]) -> Data<N> {
    let mut all = [0; N];
    let len = data.len().min(N);
    all[..len].copy_from_slice(&data[..len]);
    all
}

/// Path that a REQ names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReqPath {
    /// LID of the sender.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: [u8; 16],
    /// GID of the receiver.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate, as in a path record.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Both ports are in one subnet.
    pub subnet_local: bool,
    /// ACK timeout of the sender's queue pair, 5 bits.
    pub ack_timeout: u8,
}

/// Request for communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Req {
    /// Identifier that the sender gave the connection.
    pub local_id: u32,
    /// Service that is asked for.
    pub service_id: u64,
    /// GUID of the sender's adapter.
    pub ca_guid: u64,
    /// Q_Key.
    pub qkey: u32,
    /// Queue pair of the sender.
    pub qpn: u32,
    /// RDMA READs and atomics that the sender's responder can hold.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the sender wants outstanding.
    pub initiator_depth: u8,
    /// Time within which the receiver must answer, 5 bits.
    pub remote_response_timeout: u8,
    /// Transport service: 0 RC, 1 UC.
    pub transport: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// First packet sequence number.
    pub psn: u32,
    /// Time within which the sender answers, 5 bits.
    pub local_response_timeout: u8,
    /// Retries of the queue pair.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Code of the path MTU.
    pub mtu: u8,
    /// RNR retries of the queue pair.
    pub rnr_retry_count: u8,
    /// Retries of the datagrams of this connection, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair has an SRQ.
    pub srq: bool,
    /// Path.
    pub path: ReqPath,
    /// Private data.
    pub data: Data<REQ_DATA>,
}

/// Which message a MRA or REJ answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Answered {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// Another message.
    Other = 2,
}

impl Answered {
    fn of(code: u8) -> Self {
        match code {
            0 => Self::Req,
            1 => Self::Rep,
            _ => Self::Other,
        }
    }
}

/// Identifiers of a connection: of the sender of a message, and of its receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's.
    pub remote: u32,
}

/// Message receipt acknowledgement: the answer takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mra {
    /// Identifiers.
    pub ids: Ids,
    /// Message that it answers.
    pub answered: Answered,
    /// Time that the answer takes, 5 bits.
    pub service_timeout: u8,
}

/// Rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rej {
    /// Identifiers.
    pub ids: Ids,
    /// Message that it answers.
    pub answered: Answered,
    /// Reason.
    pub reason: u16,
    /// Additional information: the GUID of the adapter where the reason is a timeout.
    pub guid: u64,
    /// Private data.
    pub data: Data<REJ_DATA>,
}

/// Reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rep {
    /// Identifiers.
    pub ids: Ids,
    /// Q_Key.
    pub qkey: u32,
    /// Queue pair of the sender.
    pub qpn: u32,
    /// First packet sequence number.
    pub psn: u32,
    /// RDMA READs and atomics that the sender's responder can hold.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the sender wants outstanding.
    pub initiator_depth: u8,
    /// Time that the sender's adapter takes for an acknowledgement, 5 bits.
    pub ack_delay: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retries of the receiver's queue pair.
    pub rnr_retry_count: u8,
    /// The sender's queue pair has an SRQ.
    pub srq: bool,
    /// GUID of the sender's adapter.
    pub ca_guid: u64,
    /// Private data.
    pub data: Data<REP_DATA>,
}

/// Request to disconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dreq {
    /// Identifiers.
    pub ids: Ids,
    /// Queue pair of the receiver.
    pub qpn: u32,
}

/// Request for the queue pair of a datagram service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrReq {
    /// Identifier that the sender gave the request.
    pub id: u32,
    /// Partition key.
    pub pkey: u16,
    /// Service that is asked for.
    pub service_id: u64,
    /// Private data.
    pub data: Data<SIDR_REQ_DATA>,
}

/// Reply to a [`SidrReq`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrRep {
    /// Identifier of the request.
    pub id: u32,
    /// 0, or the reason of a refusal.
    pub status: u8,
    /// Queue pair.
    pub qpn: u32,
    /// Service.
    pub service_id: u64,
    /// Q_Key of the queue pair.
    pub qkey: u32,
    /// Private data.
    pub data: Data<SIDR_REP_DATA>,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Rejection.
    Rej(Rej),
    /// Reply.
    Rep(Rep),
    /// Ready to use.
    Rtu(Ids),
    /// Request to disconnect.
    Dreq(Dreq),
    /// Reply to it.
    Drep(Ids),
    /// Request for the queue pair of a service.
    SidrReq(SidrReq),
    /// Reply to it.
    SidrRep(SidrRep),
}

/// Attributes of the messages.
mod attribute {
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
    pub const SIDR_REQ: u16 = 0x17;
    pub const SIDR_REP: u16 = 0x18;
}

const BODY: usize = SIZE - HEADER;

// The bytes behind the common header.
struct Reader<'a>(&'a [u8; BODY]);

impl Reader<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }

    fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    fn u24(&self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    fn ids(&self) -> Ids {
        Ids { local: self.u32(0), remote: self.u32(4) }
    }
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    fn u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_be_bytes());
    }

    fn u24(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes()[1..]);
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_be_bytes());
    }

    fn ids(&mut self, ids: Ids) {
        self.u32(0, ids.local);
        self.u32(4, ids.remote);
    }
}

impl Message {
    /// Reads a message; returns the transaction, too. `None` if it is none of these messages.
    pub fn parse(mad: &Mad) -> Option<(u64, Self)> {
        let header = Header::parse(mad)?;
        let ours = header.class == CLASS_CM && header.class_version == CLASS_VERSION && header.method == METHOD_SEND;
        let body = Reader(mad[HEADER..].first_chunk().filter(|_| ours)?);
        let message = match header.attribute {
            attribute::REQ => Self::Req(req(&body)),
            attribute::MRA => Self::Mra(Mra {
                ids: body.ids(),
                answered: Answered::of(body.u8(8) >> 6),
                service_timeout: body.u8(9) >> 3,
            }),
            attribute::REJ => Self::Rej(Rej {
                ids: body.ids(),
                answered: Answered::of(body.u8(8) >> 6),
                reason: body.u16(10),
                guid: body.u64(12),
                data: body.array(84),
            }),
            attribute::REP => Self::Rep(rep(&body)),
            attribute::RTU => Self::Rtu(body.ids()),
            attribute::DREQ => Self::Dreq(Dreq { ids: body.ids(), qpn: body.u24(8) }),
            attribute::DREP => Self::Drep(body.ids()),
            attribute::SIDR_REQ => Self::SidrReq(SidrReq {
                id: body.u32(0),
                pkey: body.u16(4),
                service_id: body.u64(8),
                data: body.array(16),
            }),
            attribute::SIDR_REP => Self::SidrRep(SidrRep {
                id: body.u32(0),
                status: body.u8(4),
                qpn: body.u24(8),
                service_id: body.u64(12),
                qkey: body.u32(20),
                data: body.array(96),
            }),
            _ => return None,
        };
        Some((header.transaction, message))
    }

    /// Returns the datagram.
    pub fn emit(&self, transaction: u64) -> Mad {
        let mut mad = [0; SIZE];
        let mut body = Writer(&mut mad[HEADER..]);
        let attribute = match self {
            Self::Req(req) => {
                put_req(&mut body, req);
                attribute::REQ
            }
            Self::Mra(mra) => {
                body.ids(mra.ids);
                body.u8(8, (mra.answered as u8) << 6);
                body.u8(9, mra.service_timeout << 3);
                attribute::MRA
            }
            Self::Rej(rej) => {
                body.ids(rej.ids);
                body.u8(8, (rej.answered as u8) << 6);
                if rej.guid != 0 {
                    // Length of the additional information.
                    body.u8(9, 8 << 1);
                    body.u64(12, rej.guid);
                }
                body.u16(10, rej.reason);
                body.put(84, &rej.data);
                attribute::REJ
            }
            Self::Rep(rep) => {
                put_rep(&mut body, rep);
                attribute::REP
            }
            Self::Rtu(ids) => {
                body.ids(*ids);
                attribute::RTU
            }
            Self::Dreq(dreq) => {
                body.ids(dreq.ids);
                body.u24(8, dreq.qpn);
                attribute::DREQ
            }
            Self::Drep(ids) => {
                body.ids(*ids);
                attribute::DREP
            }
            Self::SidrReq(req) => {
                body.u32(0, req.id);
                body.u16(4, req.pkey);
                body.u64(8, req.service_id);
                body.put(16, &req.data);
                attribute::SIDR_REQ
            }
            Self::SidrRep(rep) => {
                body.u32(0, rep.id);
                body.u8(4, rep.status);
                body.u24(8, rep.qpn);
                body.u64(12, rep.service_id);
                body.u32(20, rep.qkey);
                body.put(96, &rep.data);
                attribute::SIDR_REP
            }
        };
        let header = Header {
            class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            transaction,
            attribute,
            ..Header::default()
        };
        header.emit(&mut mad);
        mad
    }
}

fn req(body: &Reader) -> Req {
    Req {
        local_id: body.u32(0),
        service_id: body.u64(8),
        ca_guid: body.u64(16),
        qkey: body.u32(28),
        qpn: body.u24(32),
        responder_resources: body.u8(35),
        initiator_depth: body.u8(39),
        remote_response_timeout: body.u8(43) >> 3,
        transport: body.u8(43) >> 1 & 3,
        flow_control: body.u8(43) & 1 != 0,
        psn: body.u24(44),
        local_response_timeout: body.u8(47) >> 3,
        retry_count: body.u8(47) & 7,
        pkey: body.u16(48),
        mtu: body.u8(50) >> 4,
        rnr_retry_count: body.u8(50) & 7,
        max_cm_retries: body.u8(51) >> 4,
        srq: body.u8(51) & 8 != 0,
        path: ReqPath {
            local_lid: body.u16(52),
            remote_lid: body.u16(54),
            local_gid: body.array(56),
            remote_gid: body.array(72),
            flow_label: body.u32(88) >> 12,
            rate: body.u8(91) & 0x3f,
            traffic_class: body.u8(92),
            hop_limit: body.u8(93),
            sl: body.u8(94) >> 4,
            subnet_local: body.u8(94) & 8 != 0,
            ack_timeout: body.u8(95) >> 3,
        },
        data: body.array(140),
    }
}

fn put_req(body: &mut Writer, req: &Req) {
    body.u32(0, req.local_id);
    body.u64(8, req.service_id);
    body.u64(16, req.ca_guid);
    body.u32(28, req.qkey);
    body.u24(32, req.qpn);
    body.u8(35, req.responder_resources);
    body.u8(39, req.initiator_depth);
    let flow_control = u8::from(req.flow_control);
    body.u8(43, req.remote_response_timeout << 3 | (req.transport & 3) << 1 | flow_control);
    body.u24(44, req.psn);
    body.u8(47, req.local_response_timeout << 3 | req.retry_count & 7);
    body.u16(48, req.pkey);
    body.u8(50, req.mtu << 4 | req.rnr_retry_count & 7);
    body.u8(51, req.max_cm_retries << 4 | u8::from(req.srq) << 3);
    let path = &req.path;
    body.u16(52, path.local_lid);
    body.u16(54, path.remote_lid);
    body.put(56, &path.local_gid);
    body.put(72, &path.remote_gid);
    body.u32(88, path.flow_label << 12 | u32::from(path.rate & 0x3f));
    body.u8(92, path.traffic_class);
    body.u8(93, path.hop_limit);
    body.u8(94, path.sl << 4 | u8::from(path.subnet_local) << 3);
    body.u8(95, path.ack_timeout << 3);
    body.put(140, &req.data);
}

fn rep(body: &Reader) -> Rep {
    Rep {
        ids: body.ids(),
        qkey: body.u32(8),
        qpn: body.u24(12),
        psn: body.u24(20),
        responder_resources: body.u8(24),
        initiator_depth: body.u8(25),
        ack_delay: body.u8(26) >> 3,
        flow_control: body.u8(26) & 1 != 0,
        rnr_retry_count: body.u8(27) >> 5,
        srq: body.u8(27) & 0x10 != 0,
        ca_guid: body.u64(28),
        data: body.array(36),
    }
}

fn put_rep(body: &mut Writer, rep: &Rep) {
    body.ids(rep.ids);
    body.u32(8, rep.qkey);
    body.u24(12, rep.qpn);
    body.u24(20, rep.psn);
    body.u8(24, rep.responder_resources);
    body.u8(25, rep.initiator_depth);
    body.u8(26, rep.ack_delay << 3 | u8::from(rep.flow_control));
    body.u8(27, rep.rnr_retry_count << 5 | u8::from(rep.srq) << 4);
    body.u64(28, rep.ca_guid);
    body.put(36, &rep.data);
}

const _: () = assert!(140 + REQ_DATA == BODY && 36 + REP_DATA == BODY && 84 + REJ_DATA == BODY);
const _: () = assert!(16 + SIDR_REQ_DATA == BODY && 96 + SIDR_REP_DATA == BODY);
