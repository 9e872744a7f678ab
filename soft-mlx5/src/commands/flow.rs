//! Flow tables, groups and entries.

use mlx5_wire::firmware::flow::{
    CreateGroup, CreateTable, DeleteEntry, Destination, DestroyGroup, MATCH, ModifyTable, OUTER, OfTable, SetEntry,
    TableContext, action, destination, table_type,
};

use super::Execution;
use super::capabilities::FLOW_TABLES;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, created};
use super::refusal::Refusal;
use crate::objects::flow::{FIELDS, Fields};
use crate::objects::flow_tables::{FlowTable, Next};
use crate::objects::{Tirn, flow_tables as tables};

const TO_TABLE: u8 = 1;
const MAKE: u16 = 0;
const CHANGE: u16 = 1;
/// The mask has outer headers, which are all that the device matches.
const OUTER_HEADERS: u8 = 1 << 0;
const KNOWN_ACTIONS: u16 = action::ALLOW | action::DROP | action::FORWARD | action::COUNT;

fn outer(param: &[u8; MATCH]) -> Fields {
    let mut fields = [0; FIELDS];
    fields[..OUTER].copy_from_slice(&param[..OUTER]);
    fields
}

/// Returns the mask of a group, or `None` if the group matches what the device does not look at.
fn mask_of(group: &CreateGroup) -> Option<Fields> {
    let unknown = group.criteria & !OUTER_HEADERS != 0;
    let others = group.mask[OUTER..].iter().any(|byte| *byte != 0);
    match (unknown && others, group.criteria & OUTER_HEADERS != 0) {
        (true, _) => None,
        (false, true) => Some(outer(&group.mask)),
        (false, false) => Some([0; FIELDS]),
    }
}

impl Execution<'_> {
    /// Checks that frames may go from a table of this level to another table: levels only rise, so no frame goes round.
    fn check_next(&self, level: u8, number: u32, uid: u16) -> Result<Id> {
        let id = self.state.objects.check_use(Id(Kind::FlowTable, number), uid)?;
        if self.table_of(number, 0)?.context.level > level { Ok(id) } else { Err(Refusal::LEVEL) }
    }

    /// Returns the table of frames that match no entry of a table of this level.
    fn miss_of(&self, level: u8, context: &TableContext, uid: u16) -> Result<Option<u32>> {
        if context.miss_action != TO_TABLE {
            return Ok(None);
        }
        self.check_next(level, context.miss_table, uid)?;
        Ok(Some(context.miss_table))
    }

    pub(super) fn create_flow_table(&mut self, command: &Command, output: &mut [u8]) -> Result {
        self.check_ethernet()?;
        let table: CreateTable = command.parse()?;
        let known = matches!(table.table_type, table_type::RECEIVE | table_type::TRANSMIT);
        let limits = FLOW_TABLES.receive;
        let fits = table.context.log_size <= limits.log_max_size && table.context.level < limits.max_level;
        if !known || !fits || table.other_vport {
            return Err(Refusal::TABLE);
        }
        let uid = command.uid();
        let miss = self.miss_of(table.context.level, &table.context, uid)?;
        let entry = Entry {
            uid,
            uses: miss.map(|table| Id(Kind::FlowTable, table)).into_iter().collect(),
            context: table.to_bytes().to_vec(),
            ..Entry::default()
        };
        let number = self.state.objects.insert_new(Kind::FlowTable, entry)?;
        let table = FlowTable { miss, ..FlowTable::default() };
        self.nic.flow_tables().tables.insert(number, table);
        created(output, number)
    }

    fn table_of(&self, number: u32, uid: u16) -> Result<CreateTable> {
        let entry = self.state.objects.find(Id(Kind::FlowTable, number), uid)?;
        CreateTable::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)
    }

    pub(super) fn modify_flow_table(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const MISS: u16 = 1 << 0;
        let modify: ModifyTable = command.parse()?;
        let (id, uid) = (Id(Kind::FlowTable, modify.table), command.uid());
        let table = self.table_of(modify.table, uid)?;
        if modify.field_select & !MISS != 0 {
            return Err(Refusal::FIELDS);
        }
        if modify.field_select & MISS != 0 {
            let miss = self.miss_of(table.context.level, &modify.context, uid)?;
            let uses = miss.map(|table| Id(Kind::FlowTable, table)).into_iter().collect();
            self.state.objects.set_uses(id, uses);
            if let Some(table) = self.nic.flow_tables().tables.get_mut(&modify.table) {
                table.miss = miss;
            }
        }
        Ok(())
    }

    pub(super) fn destroy_flow_table(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let of: OfTable = command.parse()?;
        let id = Id(Kind::FlowTable, of.table);
        self.state.objects.check_unused(id, command.uid())?;
        self.end(id)?;
        self.state.objects.remove(id);
        Ok(())
    }

    pub(super) fn set_flow_table_root(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let of: OfTable = command.parse()?;
        let table = self.table_of(of.table, command.uid())?;
        if table.table_type != of.table_type {
            return Err(Refusal::TABLE);
        }
        // Frames that are sent go out, whatever the tables of the other side say.
        if of.table_type == table_type::RECEIVE {
            self.nic.flow_tables().root = Some(of.table);
        }
        Ok(())
    }

    pub(super) fn create_flow_group(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let group: CreateGroup = command.parse()?;
        let uid = command.uid();
        let table = self.table_of(group.table, uid)?;
        if group.start > group.end || group.end >> table.context.log_size != 0 {
            return Err(Refusal::TABLE);
        }
        let entry = Entry {
            uid,
            uses: vec![Id(Kind::FlowTable, group.table)],
            context: group.to_bytes().to_vec(),
            ..Entry::default()
        };
        created(output, self.state.objects.insert_new(Kind::FlowGroup, entry)?)
    }

    pub(super) fn destroy_flow_group(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let DestroyGroup { group, .. } = command.parse()?;
        let id = Id(Kind::FlowGroup, group);
        self.state.objects.check_unused(id, command.uid())?;
        self.state.objects.remove(id);
        Ok(())
    }

    pub(super) fn set_flow_entry(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let set: SetEntry = command.parse()?;
        let uid = command.uid();
        let level = self.table_of(set.table, uid)?.context.level;
        let group = self.state.objects.find(Id(Kind::FlowGroup, set.group), uid)?;
        let group = CreateGroup::from_prefix(&group.context).ok_or(Refusal::NO_OBJECT)?;
        let place = (set.table, set.index);
        let known = self.state.flow_entries.get(&place).copied();
        let inside = group.table == set.table && (group.start..=group.end).contains(&set.index);
        let sound = match command.request.op_mod {
            MAKE => known.is_none(),
            CHANGE => known.is_some(),
            _ => return Err(Refusal::UNKNOWN_MODIFIER),
        };
        if !inside || !sound || set.action & !KNOWN_ACTIONS != 0 {
            return Err(Refusal::TABLE);
        }
        let mut uses = vec![Id(Kind::FlowTable, set.table), Id(Kind::FlowGroup, set.group)];
        let mut next = Vec::new();
        if set.action & action::FORWARD != 0 {
            let list = command.after::<SetEntry>().chunks_exact(Destination::SIZE);
            if list.len() < set.destinations as usize {
                return Err(Refusal::INPUT_LENGTH);
            }
            for bytes in list.take(set.destinations as usize) {
                let to = Destination::from_prefix(bytes).ok_or(Refusal::INPUT_LENGTH)?;
                let (id, leads) = match to.kind {
                    destination::TIR => {
                        let id = self.state.objects.check_use(Id(Kind::Tir, to.number), uid)?;
                        (id, Next::Tir(Tirn(to.number)))
                    }
                    destination::TABLE => (self.check_next(level, to.number, uid)?, Next::Table(to.number)),
                    _ => return Err(Refusal::TABLE),
                };
                uses.push(id);
                next.push(leads);
            }
        }
        match known {
            Some(number) => self.state.objects.set_uses(Id(Kind::FlowEntry, number), uses),
            None => {
                let entry = Entry {
                    uid,
                    uses,
                    context: [set.table, set.index].iter().flat_map(|n| n.to_be_bytes()).collect(),
                    ..Entry::default()
                };
                let number = self.state.objects.insert_new(Kind::FlowEntry, entry)?;
                self.state.flow_entries.insert(place, number);
            }
        }
        let entry = tables::Entry { mask: mask_of(&group), value: outer(&set.value), tag: set.tag, next };
        if let Some(table) = self.nic.flow_tables().tables.get_mut(&set.table) {
            table.entries.insert(set.index, entry);
        }
        Ok(())
    }

    pub(super) fn delete_flow_entry(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let DeleteEntry { table, index, .. } = command.parse()?;
        let number = self.state.flow_entries.get(&(table, index)).copied();
        let id = Id(Kind::FlowEntry, number.ok_or(Refusal::NO_OBJECT)?);
        self.state.objects.check_unused(id, command.uid())?;
        self.end(id)?;
        self.state.objects.remove(id);
        Ok(())
    }

    /// Ends a table or an entry.
    pub(super) fn end_flow(&mut self, id: Id) {
        let tables = self.nic.flow_tables();
        match id {
            Id(Kind::FlowTable, number) => {
                tables.tables.remove(&number);
                tables.root.take_if(|root| *root == number);
            }
            Id(Kind::FlowEntry, number) => {
                // The context of an entry is its place.
                let context = self.state.objects.get(Kind::FlowEntry, number).map(|entry| &entry.context[..]);
                let Some([a, b, c, d, e, f, g, h]) = context else { return };
                let table = u32::from_be_bytes([*a, *b, *c, *d]);
                let index = u32::from_be_bytes([*e, *f, *g, *h]);
                self.state.flow_entries.remove(&(table, index));
                if let Some(table) = tables.tables.get_mut(&table) {
                    table.entries.remove(&index);
                }
            }
            _ => {}
        }
    }
}
