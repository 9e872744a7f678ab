//! Subnet administration: what a subnet manager would know about the fabric.

use super::bytes::{get16, get32, get64, gid, put16, put32, put64};
use super::records::{self, NODE_INFO, Node, SM_INFO, SWITCH_INFO};
use super::{CLASS_PORT_INFO, Change, DELETE, GET, GET_TABLE, OK, SET, Surroundings, UNSUPPORTED, response};
use crate::commands::limits;
use crate::fabric::address::{self, SWITCH_LID};
use crate::fabric::groups::{Member, Membership};
use crate::fabric::mad::{Header, Mad};

const NODE_RECORD: u16 = 0x11;
const PORT_INFO_RECORD: u16 = 0x12;
const SWITCH_INFO_RECORD: u16 = 0x14;
const SM_INFO_RECORD: u16 = 0x18;
const LINK_RECORD: u16 = 0x20;
const PATH_RECORD: u16 = 0x35;
const MEMBER_RECORD: u16 = 0x38;

/// Where the parts of a datagram are.
const RMPP: usize = 24;
const SM_KEY: usize = 36;
const OFFSET: usize = 44;
const MASK: usize = 48;
const DATA: usize = 56;
/// Bytes of the record of the longest kind in a request.
const RECORD: usize = 256 - DATA;

const NO_RECORDS: u16 = 3 << 8;
const TOO_MANY_RECORDS: u16 = 4 << 8;
const INVALID_GID: u16 = 5 << 8;
const INSUFFICIENT: u16 = 6 << 8;

const VERSION: u8 = 2;
const RESPONSE_TIME: u8 = 18;
/// RMPP: version, type of data, and a transfer of one segment from the program's view.
const WHOLE: [u8; 4] = [1, 1, 7, 0];

/// Selector "exactly" of an MTU, a rate or a life time.
const EXACTLY: u8 = 2 << 6;
const MTU_4096: u8 = EXACTLY | 5;
/// 100 Gb/s.
const RATE_100: u8 = EXACTLY | 16;
/// 4 us times 2^18.
const LIFE_TIME: u8 = EXACTLY | 18;
const HOP_LIMIT: u32 = 64;
const SCOPE_LINK_LOCAL: u8 = 2;
/// Queue key of a group whose members did not name one.
const DEFAULT_QKEY: u32 = 0x0b1b;

/// Bits of a component mask.
mod path {
    pub const DGID: u32 = 2;
    pub const SGID: u32 = 3;
    pub const DLID: u32 = 4;
    pub const SLID: u32 = 5;
}
mod member {
    pub const MGID: u32 = 0;
    pub const PORT_GID: u32 = 1;
    pub const QKEY: u32 = 2;
    pub const MLID: u32 = 3;
    pub const JOIN_STATE: u32 = 16;
}

/// A request, taken apart.
struct Query<'a> {
    method: u8,
    sm_key: u64,
    mask: u64,
    data: &'a [u8],
}

impl Query<'_> {
    fn has(&self, bit: u32) -> bool {
        self.mask >> bit & 1 == 1
    }
}

/// Records of one size, or the status of a refusal.
type Found = Result<Vec<Vec<u8>>, u16>;

/// Answers a request; `None` if it asks for nothing. A table may be longer than a datagram: then the answer is what a
/// program sees after the segments of the transfer were joined.
pub fn answer(request: &Mad, around: &Surroundings) -> Option<(Vec<u8>, Option<Change>)> {
    let header = Header::parse(request)?;
    if !matches!(header.method, GET | SET | GET_TABLE | DELETE) {
        return None;
    }
    let query = Query {
        method: header.method,
        sm_key: get64(request, SM_KEY),
        mask: get64(request, MASK),
        data: &request[DATA..],
    };
    let mut change = None;
    let found = match (header.attribute, header.method) {
        (CLASS_PORT_INFO, GET) => Ok(vec![class_port_info()]),
        (NODE_RECORD, GET | GET_TABLE) => Ok(of_lids(&query, nodes(around))),
        (PORT_INFO_RECORD, GET | GET_TABLE) => Ok(of_lids(&query, ports(around))),
        (SWITCH_INFO_RECORD, GET | GET_TABLE) => {
            let mut record = record(SWITCH_LID, 4 + SWITCH_INFO);
            record[4..].copy_from_slice(&records::switch_info()[..SWITCH_INFO]);
            Ok(of_lids(&query, vec![record]))
        }
        (SM_INFO_RECORD, GET | GET_TABLE) => {
            let mut record = record(SWITCH_LID, 4 + SM_INFO);
            record[4..].copy_from_slice(&records::sm_info(around)[..SM_INFO]);
            Ok(of_lids(&query, vec![record]))
        }
        (LINK_RECORD, GET | GET_TABLE) => Ok(of_lids(&query, links(around))),
        (PATH_RECORD, GET | GET_TABLE) => paths(&query, around),
        (MEMBER_RECORD, GET | GET_TABLE) => Ok(members(&query, around)),
        (MEMBER_RECORD, SET) => join(&query, around, &mut change),
        (MEMBER_RECORD, DELETE) => leave(&query, around, &mut change),
        _ => Err(UNSUPPORTED),
    };
    let found = found.and_then(|records| match (query.method, records.len()) {
        (GET_TABLE, _) | (_, 1) => Ok(records),
        (_, 0) => Err(NO_RECORDS),
        _ => Err(TOO_MANY_RECORDS),
    });
    Some((assemble(request, query.method, found), change))
}

fn assemble(request: &Mad, method: u8, found: Found) -> Vec<u8> {
    let mut answer = response(request, *found.as_ref().err().unwrap_or(&OK)).to_vec();
    let Ok(records) = found else { return answer };
    answer[DATA..].fill(0);
    // Records of a table begin at multiples of eight bytes.
    let size = records.first().map_or(0, |record| record.len().next_multiple_of(8));
    put16(&mut answer, OFFSET, (size / 8) as u16);
    let bytes: Vec<u8> = records
        .into_iter()
        .flat_map(|mut record| {
            record.resize(size, 0);
            record
        })
        .collect();
    if method == GET_TABLE {
        answer[RMPP..RMPP + 4].copy_from_slice(&WHOLE);
        put32(&mut answer, RMPP + 4, 1);
        put32(&mut answer, RMPP + 8, (bytes.len() + DATA - SM_KEY) as u32);
        answer.truncate(DATA);
        answer.extend(bytes);
    } else {
        let len = bytes.len().min(RECORD);
        answer[DATA..DATA + len].copy_from_slice(&bytes[..len]);
    }
    answer
}

fn record(lid: u16, len: usize) -> Vec<u8> {
    let mut record = vec![0; len];
    put16(&mut record, 0, lid);
    record
}

// The LID is the first component of all these records.
fn of_lids(query: &Query, records: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let wanted = query.has(0).then(|| get16(query.data, 0));
    let fits = |record: &Vec<u8>| wanted.is_none_or(|lid| get16(record, 0) == lid);
    records.into_iter().filter(fits).collect()
}

fn class_port_info() -> Vec<u8> {
    let mut info = vec![0; 72];
    info[..2].copy_from_slice(&[1, VERSION]);
    info[7] = RESPONSE_TIME;
    info
}

fn all_nodes(around: &Surroundings) -> Vec<(u16, Node)> {
    let devices = around.lids().into_iter().map(|lid| (lid, Node::Device(lid)));
    devices.chain([(SWITCH_LID, Node::Switch)]).collect()
}

fn nodes(around: &Surroundings) -> Vec<Vec<u8>> {
    let node = |(lid, node)| {
        let mut record = record(lid, 4 + NODE_INFO + 64);
        let port = if node == Node::Switch { 0 } else { 1 };
        let info = records::node_info(around, node, port);
        record[4..4 + NODE_INFO].copy_from_slice(&info[..NODE_INFO]);
        record[4 + NODE_INFO..].copy_from_slice(&records::node_description(node));
        record
    };
    all_nodes(around).into_iter().map(node).collect()
}

fn ports(around: &Surroundings) -> Vec<Vec<u8>> {
    let of_node = |(lid, node)| {
        let numbers = match node {
            Node::Device(_) => 1..=1,
            Node::Switch => 0..=records::switch_ports(around),
        };
        numbers.filter_map(move |port| {
            let mut record = record(lid, 4 + 64);
            record[2] = port;
            record[4..].copy_from_slice(&records::port_info(around, node, port, port)?);
            Some(record)
        })
    };
    all_nodes(around).into_iter().flat_map(of_node).collect()
}

fn links(around: &Surroundings) -> Vec<Vec<u8>> {
    let link = |from: u16, from_port: u8, to: u16, to_port: u8| {
        let mut record = record(from, 6);
        record[2..4].copy_from_slice(&[from_port, to_port]);
        put16(&mut record, 4, to);
        record
    };
    let lids = around.lids().into_iter();
    let with_ports = lids.filter_map(|lid| Some((lid, records::switch_port_to(around, lid)?)));
    with_ports.flat_map(|(lid, port)| [link(lid, 1, SWITCH_LID, port), link(SWITCH_LID, port, lid, 1)]).collect()
}

/// Returns the LIDs that one end of a path may have.
fn ends(query: &Query, around: &Surroundings, by_gid: (u32, usize), by_lid: (u32, usize)) -> Result<Vec<u16>, u16> {
    let mut lids = around.lids();
    lids.push(SWITCH_LID);
    if query.has(by_gid.0) {
        let wanted = gid(query.data, by_gid.1);
        let lid = lids.iter().find(|lid| address::gid(**lid) == wanted);
        lids = vec![*lid.ok_or(INVALID_GID)?];
    }
    if query.has(by_lid.0) {
        let wanted = get16(query.data, by_lid.1);
        lids.retain(|lid| *lid == wanted);
    }
    Ok(lids)
}

fn paths(query: &Query, around: &Surroundings) -> Found {
    let to = ends(query, around, (path::DGID, 8), (path::DLID, 40))?;
    let from = ends(query, around, (path::SGID, 24), (path::SLID, 42))?;
    let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
    let path = |(from, to): (u16, u16)| {
        let mut record = vec![0; 64];
        record[8..24].copy_from_slice(&address::gid(to));
        record[24..40].copy_from_slice(&address::gid(from));
        put16(&mut record, 40, to);
        put16(&mut record, 42, from);
        // Reversible, and one of one.
        record[49] = 0x80 | 1;
        put16(&mut record, 50, limits::DEFAULT_PKEY);
        record[54..57].copy_from_slice(&[MTU_4096, RATE_100, LIFE_TIME]);
        record
    };
    Ok(pairs.map(path).collect())
}

fn member_record(member: &Member, with_port: bool) -> Vec<u8> {
    let Membership { mgid, qkey, join_state } = member.membership;
    let mut record = vec![0; 52];
    record[..16].copy_from_slice(&mgid);
    if with_port {
        record[16..32].copy_from_slice(&address::gid(member.lid));
    }
    put32(&mut record, 32, qkey);
    put16(&mut record, 36, address::mlid_of_group(&mgid));
    record[38] = MTU_4096;
    put16(&mut record, 40, limits::DEFAULT_PKEY);
    record[42..44].copy_from_slice(&[RATE_100, LIFE_TIME]);
    put32(&mut record, 44, HOP_LIMIT);
    record[48] = SCOPE_LINK_LOCAL << 4 | join_state;
    record
}

fn members(query: &Query, around: &Surroundings) -> Vec<Vec<u8>> {
    let fits = |member: &&Member| {
        let Membership { mgid, .. } = member.membership;
        let mlid = address::mlid_of_group(&mgid);
        (!query.has(member::MGID) || gid(query.data, 0) == mgid)
            && (!query.has(member::PORT_GID) || gid(query.data, 16) == address::gid(member.lid))
            && (!query.has(member::MLID) || get16(query.data, 36) == mlid)
    };
    let mut found: Vec<&Member> = around.members.iter().filter(fits).collect();
    // A request without the key sees all groups, and only the member that it names.
    let trusted = query.sm_key != 0;
    let each = trusted && query.method == GET_TABLE;
    if !each {
        found.dedup_by_key(|member| member.membership.mgid);
    }
    let with_port = trusted || query.has(member::PORT_GID);
    found.into_iter().map(|member| member_record(member, with_port)).collect()
}

/// Returns the group that a request of this port names.
fn group(query: &Query, around: &Surroundings) -> Result<[u8; 16], u16> {
    if !query.has(member::PORT_GID) || !query.has(member::JOIN_STATE) {
        return Err(INSUFFICIENT);
    }
    if gid(query.data, 16) != address::gid(around.lid) {
        return Err(INVALID_GID);
    }
    Ok(gid(query.data, 0))
}

fn join(query: &Query, around: &Surroundings, change: &mut Option<Change>) -> Found {
    let mut mgid = group(query, around)?;
    let join_state = query.data[48] & 0xf;
    if !query.has(member::MGID) || mgid == [0; 16] {
        mgid = fresh_group(around);
    }
    if !address::is_multicast_gid(&mgid) || join_state == 0 {
        return Err(INVALID_GID);
    }
    let of_group = |member: &&Member| member.membership.mgid == mgid;
    let present = around.members.iter().find(of_group);
    let asked = query.has(member::QKEY).then(|| get32(query.data, 32));
    let qkey = present.map(|member| member.membership.qkey).or(asked).unwrap_or(DEFAULT_QKEY);
    let own = around.members.iter().find(|member| of_group(member) && member.lid == around.lid);
    let joined = own.map_or(0, |member| member.membership.join_state);
    let membership = Membership { mgid, qkey, join_state: joined | join_state };
    *change = Some(Change::Join(membership));
    Ok(vec![member_record(&Member { lid: around.lid, membership }, true)])
}

fn leave(query: &Query, around: &Surroundings, change: &mut Option<Change>) -> Found {
    let mgid = group(query, around)?;
    let own = |member: &&Member| member.lid == around.lid && member.membership.mgid == mgid;
    let member = around.members.iter().find(own).ok_or(NO_RECORDS)?;
    let state = member.membership.join_state & !(query.data[48] & 0xf);
    let membership = Membership { join_state: state, ..member.membership };
    *change = Some(if state == 0 { Change::Leave(mgid) } else { Change::Join(membership) });
    Ok(vec![member_record(&Member { lid: around.lid, membership }, true)])
}

/// Returns a group that has no member: a transient one of this link, with a signature of management.
fn fresh_group(around: &Surroundings) -> [u8; 16] {
    let group = |number: u64| {
        let mut mgid = [0; 16];
        mgid[..4].copy_from_slice(&[0xff, 0x12, 0xa0, 0x1b]);
        put16(&mut mgid, 4, around.lid);
        put64(&mut mgid, 8, number);
        mgid
    };
    let taken = |mgid: &[u8; 16]| around.members.iter().any(|m| m.membership.mgid == *mgid);
    (1..).map(group).find(|mgid| !taken(mgid)).expect("there are fewer members than numbers")
}
