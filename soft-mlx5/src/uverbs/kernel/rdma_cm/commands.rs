//! Commands that a program writes to the file, and those that concern the file alone.

use super::events::LEAST_ROOM;
use super::identifier::{Identifier, ps};
use super::{Call, Queued};
use crate::objects::{Result, Service};
use crate::uverbs::fd_table;
use crate::uverbs::kernel::abi::Abi;
use crate::uverbs::kernel::abi::rdma_cm::{CommandHeader, CreateId, DestroyId, MigrateId};
use crate::uverbs::kernel::errno::{EBADF, EINVAL, ENOSPC, ENOSYS};
use crate::uverbs::kernel::events::FileId;
use crate::uverbs::kernel::udata::{Input, Output};
use crate::uverbs::kernel::user;

const GET_EVENT: u32 = 12;

/// Room that the header of a command promises, and its input.
pub struct Request {
    /// Input behind the header.
    pub input: Input,
    /// Bytes of room for an answer.
    pub room: usize,
}

impl Request {
    /// Answers a command whose program needs the whole answer.
    pub fn respond<T: Abi>(&self, addr: u64, answer: &T) -> Result<()> {
        if self.room < T::SIZE { Err(ENOSPC) } else { user::write(addr, &answer.to_bytes()) }
    }

    /// Answers a command with as much as there is room for, at least with `least` bytes.
    pub fn respond_partly(&self, addr: u64, least: usize, answer: &[u8]) -> Result<()> {
        if self.room < least {
            return Err(ENOSPC);
        }
        Output { addr, len: self.room }.put_bytes(answer)
    }
}

fn header(addr: u64, count: usize) -> Result<CommandHeader> {
    if count < CommandHeader::SIZE {
        return Err(EINVAL);
    }
    let header: CommandHeader = Input::user(addr, CommandHeader::SIZE).get()?;
    let fits = usize::from(header.in_len) + CommandHeader::SIZE <= count;
    if fits { Ok(header) } else { Err(EINVAL) }
}

/// Returns `true` if the command asks for an event.
pub fn asks_for_event(addr: u64, count: usize) -> Result<bool> {
    let header = header(addr, count)?;
    let asks = header.command == GET_EVENT;
    if asks && usize::from(header.out_len) < LEAST_ROOM { Err(ENOSPC) } else { Ok(asks) }
}

/// Runs a command; returns `false` if it asks for an event and there is none.
pub(super) fn run(call: &mut Call, addr: u64, count: usize) -> Result<bool> {
    let header = header(addr, count)?;
    let body = addr.wrapping_add(CommandHeader::SIZE as u64);
    let request = &Request { input: Input::user(body, header.in_len.into()), room: header.out_len.into() };
    match header.command {
        0 => call.create_id(request)?,
        1 => call.destroy_id(request)?,
        2 => call.bind_ip(request)?,
        3 => call.resolve_ip(request)?,
        4 => call.resolve_route(request)?,
        5 => call.query_route(request)?,
        6 => call.connect(request)?,
        7 => call.listen(request)?,
        8 => call.accept(request)?,
        9 => call.reject(request)?,
        10 => call.disconnect(request)?,
        11 => call.init_qp_attr(request)?,
        GET_EVENT => return call.get_event(request),
        14 => call.set_option(request)?,
        15 => call.notify(request)?,
        16 => call.join_ip_multicast(request)?,
        17 => call.leave_multicast(request)?,
        18 => call.migrate_id(request)?,
        19 => call.query(request)?,
        20 => call.bind(request)?,
        21 => call.resolve_addr(request)?,
        22 => call.join_multicast(request)?,
        24 => call.write_event(request)?,
        // GET_OPTION: the kernel has none, either. RESOLVE_IB_SERVICE (23): no administrator has service records.
        13 => return Err(ENOSYS),
        _ => return Err(EINVAL),
    }
    Ok(true)
}

impl Call<'_> {
    /// Returns an identifier of this file.
    pub(super) fn id(&mut self, id: u32) -> Result<&mut Identifier> {
        self.core.rdma_cm.id(self.file, id)
    }

    fn create_id(&mut self, request: &Request) -> Result<()> {
        const QPT_RC: u8 = 2;
        const QPT_UC: u8 = 3;
        const QPT_UD: u8 = 4;
        if request.room < 4 {
            return Err(ENOSPC);
        }
        let wanted: CreateId = request.input.get()?;
        let service = match (wanted.ps, wanted.qp_type) {
            (ps::TCP, _) => Service::Rc,
            (ps::UDP | ps::IPOIB, _) => Service::Ud,
            (ps::IB, QPT_RC) => Service::Rc,
            (ps::IB, QPT_UC) => Service::Uc,
            (ps::IB, QPT_UD) => Service::Ud,
            _ => return Err(EINVAL),
        };
        let id = self.core.rdma_cm.numbers.take();
        if let Err(error) = request.respond(wanted.response, &id) {
            self.core.rdma_cm.numbers.release(id);
            return Err(error);
        }
        let identifier = Identifier::new(wanted.uid, self.file, wanted.ps, service);
        self.core.rdma_cm.ids.insert(id, identifier);
        Ok(())
    }

    fn destroy_id(&mut self, request: &Request) -> Result<()> {
        if request.room < 4 {
            return Err(ENOSPC);
        }
        let wanted: DestroyId = request.input.get()?;
        self.id(wanted.id)?;
        let reported = self.destroy(wanted.id);
        request.respond(wanted.response, &reported)
    }

    /// Ends all identifiers of this file.
    pub(super) fn destroy_all(&mut self) {
        let file = self.file;
        let of_file = self.core.rdma_cm.ids.iter().filter(|(_, id)| id.file == file);
        let ids: Vec<_> = of_file.map(|(number, _)| *number).collect();
        for id in ids {
            self.destroy(id);
        }
    }

    /// Ends an identifier; returns the number of its events that the program has read.
    fn destroy(&mut self, number: u32) -> u32 {
        let rdma_cm = &mut self.core.rdma_cm;
        let Some(id) = rdma_cm.ids.remove(&number) else { return 0 };
        rdma_cm.waiting.remove(&number);
        let numbers = &mut rdma_cm.numbers;
        numbers.release(number);
        let mut left = Vec::new();
        rdma_cm.groups.retain(|group_number, group| {
            let stays = group.id != number;
            if !stays {
                numbers.release(*group_number);
                left.push(group.gid);
            }
            stays
        });
        if let Some(source) = id.source {
            rdma_cm.ports.release(id.ps, source.port(), number);
        }
        if let Some(service) = id.listens {
            rdma_cm.cm.unlisten(service);
        }
        if let Some(cm) = id.cm {
            rdma_cm.by_cm.remove(&cm);
            rdma_cm.cm.destroy(cm);
        }
        let unread = rdma_cm.files.get_mut(&id.file).map(|file| file.extract(|e| e.of == number));
        for gid in left {
            let _ = self.core.follow_membership(&gid, 0);
        }
        // Requests in them are lost: no program reads them.
        for fresh in unread.into_iter().flatten().filter_map(|event| event.fresh) {
            self.destroy(fresh);
        }
        id.reported
    }

    fn get_event(&mut self, request: &Request) -> Result<bool> {
        let response: u64 = request.input.get()?;
        let file = self.core.rdma_cm.files.get_mut(&self.file).ok_or(EBADF)?;
        let Some(queued) = file.pop() else { return Ok(false) };
        if let Err(error) = request.respond_partly(response, LEAST_ROOM, &queued.to_bytes()) {
            file.put_back(queued);
            return Err(error);
        }
        self.count(&queued);
        Ok(true)
    }

    // Counts an event that the program has read.
    fn count(&mut self, queued: &Queued) {
        let rdma_cm = &mut self.core.rdma_cm;
        if let Some(group) = queued.group {
            if let Some(group) = rdma_cm.groups.get_mut(&group) {
                group.reported += 1;
            }
        } else if let Some(id) = rdma_cm.ids.get_mut(&queued.of) {
            id.reported += 1;
            id.backlog += u32::from(queued.fresh.is_some());
        }
    }

    fn migrate_id(&mut self, request: &Request) -> Result<()> {
        if request.room < 4 {
            return Err(ENOSPC);
        }
        let wanted: MigrateId = request.input.get()?;
        let old = fd_table::get(wanted.fd).ok_or(EBADF)?;
        if old.kind != fd_table::Kind::RdmaCm || old.slot != self.core.slot {
            return Err(EINVAL);
        }
        let (old, new): (FileId, FileId) = (old.id, self.file);
        let rdma_cm = &mut self.core.rdma_cm;
        let id = rdma_cm.id(old, wanted.id)?;
        id.file = new;
        let reported = id.reported;
        if old != new {
            let unread = rdma_cm.files.get_mut(&old).map(|file| file.extract(|e| e.of == wanted.id));
            for queued in unread.into_iter().flatten() {
                let fresh = queued.fresh.and_then(|fresh| rdma_cm.ids.get_mut(&fresh));
                fresh.into_iter().for_each(|fresh| fresh.file = new);
                rdma_cm.push(queued);
            }
        }
        request.respond(wanted.response, &reported)
    }
}
