//! Queries: addresses, GIDs and paths of an identifier.

use super::Call;
use super::address::{Address, gid_of};
use super::commands::Request;
use super::connect::{RATE, mtu};
use super::identifier::{Identifier, State};
use crate::commands::limits::DEFAULT_PKEY;
use crate::objects::Result;
use crate::uverbs::cm::Path;
use crate::uverbs::kernel::abi::Abi;
use crate::uverbs::kernel::abi::rdma_cm::{
    PathData, Query, QueryAddrResp, QueryPathResp, QueryRouteResp, Storage, UserPath,
};
use crate::uverbs::kernel::errno::{EINVAL, ENODEV, ENOSPC};

const OPTION_ADDR: u32 = 0;
const OPTION_PATH: u32 = 1;
const OPTION_GID: u32 = 2;

/// A value is exact, not a bound.
const EXACT: u8 = 2;
const LIFETIME: u8 = 16;
/// For management, primary, in both directions.
const PRIMARY: u32 = 1 | 2 | 8 | 32;
/// Where a path record has the words that follow its GIDs.
const RECORD: usize = 64;

fn rows(bytes: &[u8]) -> Storage {
    let mut all = Storage::default();
    all.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
    all
}

fn has_route(id: &Identifier) -> bool {
    matches!(id.state, State::RouteResolved | State::Connect | State::Disconnect)
}

impl Call<'_> {
    pub(super) fn query_route(&mut self, request: &Request) -> Result<()> {
        let wanted: Query = request.input.get()?;
        let node_guid = self.guid();
        let (link, lid) = (self.core.link, self.core.nic.port().lid);
        let id = self.id(wanted.id)?;
        let six = |address: Option<Address>| address.map_or([0; 28], |address| address.emit_array());
        let mut answer =
            QueryRouteResp { src_addr: six(id.source), dst_addr: six(id.destination), ..QueryRouteResp::default() };
        if id.on_device {
            (answer.node_guid, answer.port_num) = (node_guid, 1);
            answer.num_paths = has_route(id).into();
            let path = id.path.unwrap_or_else(|| unresolved(id, lid, link));
            answer.ib_route[0] = UserPath {
                dgid: path.remote_gid,
                sgid: path.local_gid,
                dlid: path.remote_lid.to_be_bytes(),
                slid: path.local_lid.to_be_bytes(),
                flow_label: path.flow_label.to_be_bytes(),
                reversible: 1,
                mtu: mtu(link).into(),
                pkey: DEFAULT_PKEY.to_be_bytes(),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
                numb_path: 1,
                sl: path.sl,
                mtu_selector: EXACT,
                rate_selector: EXACT,
                rate: RATE,
                packet_life_time_selector: EXACT,
                packet_life_time: LIFETIME,
                ..UserPath::default()
            };
        }
        // Programs of all versions have room for the answer of the oldest kernel.
        request.respond_partly(wanted.response, QueryRouteResp::SIZE, &answer.to_bytes())
    }

    pub(super) fn query(&mut self, request: &Request) -> Result<()> {
        let wanted: Query = request.input.get()?;
        self.id(wanted.id)?;
        let answer = match wanted.option {
            OPTION_ADDR => self.addresses(wanted.id)?,
            OPTION_PATH => return self.query_path(request, &wanted),
            OPTION_GID => self.gids(wanted.id)?,
            _ => return Err(EINVAL),
        };
        request.respond_partly(wanted.response, QueryAddrResp::SIZE, &answer.to_bytes())
    }

    // The GUID as it stands in memory: in network byte order.
    fn guid(&self) -> u64 {
        self.core.rdma_cm.shown_guid.to_be()
    }

    fn base(&mut self, id: u32) -> Result<QueryAddrResp> {
        let node_guid = self.guid();
        let on_device = self.id(id)?.on_device;
        let (node_guid, port_num) = if on_device { (node_guid, 1) } else { (0, 0) };
        // In network byte order, too.
        let pkey = if on_device { DEFAULT_PKEY.to_be() } else { 0 };
        Ok(QueryAddrResp { node_guid, port_num, pkey, ..QueryAddrResp::default() })
    }

    fn addresses(&mut self, id: u32) -> Result<QueryAddrResp> {
        let base = self.base(id)?;
        let id = self.id(id)?;
        let emit = |address: Option<Address>| address.map_or_else(Vec::new, |address| address.emit());
        let (source, destination) = (emit(id.source), emit(id.destination));
        Ok(QueryAddrResp {
            src_size: source.len() as u16,
            dst_size: destination.len() as u16,
            src_addr: rows(&source),
            dst_addr: rows(&destination),
            ..base
        })
    }

    fn gids(&mut self, number: u32) -> Result<QueryAddrResp> {
        let base = self.base(number)?;
        let (link, lid) = (self.core.link, self.core.nic.port().lid);
        let id = self.id(number)?;
        let path = id.path.unwrap_or_else(|| unresolved(id, lid, link));
        let service = |address: Option<Address>| address.map_or(0, |address| id.service_id(&address));
        let ib = |gid, service_id| Address::Ib { gid, service_id, mask: u64::MAX, pkey: DEFAULT_PKEY }.emit();
        let local = if id.on_device { path.local_gid } else { [0; 16] };
        let source = ib(local, service(id.source));
        let destination = ib(path.remote_gid, service(id.destination));
        Ok(QueryAddrResp {
            src_size: source.len() as u16,
            dst_size: destination.len() as u16,
            src_addr: rows(&source),
            dst_addr: rows(&destination),
            ..base
        })
    }

    fn query_path(&mut self, request: &Request, wanted: &Query) -> Result<()> {
        let link = self.core.link;
        let id = self.id(wanted.id)?;
        if !id.on_device {
            return Err(ENODEV);
        }
        let path = id.path.filter(|_| has_route(id));
        if request.room < QueryPathResp::SIZE {
            return Err(ENOSPC);
        }
        let head = QueryPathResp { num_paths: path.is_some().into(), reserved: 0 };
        let mut answer = head.to_bytes();
        if let Some(path) = path {
            let record = record(&path, mtu(link));
            let mut data = PathData { flags: PRIMARY, ..PathData::default() };
            data.record.as_flattened_mut().copy_from_slice(&record);
            answer.extend(data.to_bytes());
        }
        request.respond_partly(wanted.response, QueryPathResp::SIZE, &answer)
    }
}

// Returns a path of which only this end is known.
fn unresolved(id: &Identifier, lid: u16, link: crate::fabric::LinkLayer) -> Path {
    let index = id.source.map_or(0, |source| source.gid_index(link));
    Path { local_lid: lid, local_gid: gid_of(lid, link, index), ..Path::default() }
}

// Returns the path record of a subnet administrator.
fn record(path: &Path, mtu: u8) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[8..24].copy_from_slice(&path.remote_gid);
    bytes[24..40].copy_from_slice(&path.local_gid);
    bytes[40..42].copy_from_slice(&path.remote_lid.to_be_bytes());
    bytes[42..44].copy_from_slice(&path.local_lid.to_be_bytes());
    let flow = path.flow_label << 8 | u32::from(path.hop_limit);
    bytes[44..48].copy_from_slice(&flow.to_be_bytes());
    bytes[48] = path.traffic_class;
    // Reversible; one path.
    bytes[49] = 0x80 | 1;
    bytes[50..52].copy_from_slice(&DEFAULT_PKEY.to_be_bytes());
    bytes[53] = path.sl;
    bytes[54] = EXACT << 6 | mtu;
    bytes[55] = EXACT << 6 | RATE;
    bytes[56] = EXACT << 6 | LIFETIME;
    bytes
}
