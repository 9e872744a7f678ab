//! Memory keys.

use mlx5_wire::firmware::mkey::{CreateMkey, MkeyContext, QueryMkeyReply, access_mode};

use super::Execution;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use crate::objects::memory::Space;
use crate::objects::mkey::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::objects::{Access, MkeyAttr, Pdn};

/// Value of the field that names the only queue pair of a key: all of the domain may use the key.
const ANY_QP: u32 = 0xff_ffff;

fn access(context: &MkeyContext) -> Access {
    let rights = [
        (context.local_write, LOCAL_WRITE),
        (context.remote_write, REMOTE_WRITE),
        (context.remote_read, REMOTE_READ),
        (context.atomic, REMOTE_ATOMIC),
    ];
    rights.iter().filter(|(given, _)| *given).map(|(_, right)| right).sum()
}

impl Execution<'_> {
    /// Returns the whole key with this index.
    pub(super) fn key_of(&self, index: u32) -> u32 {
        let entry = self.state.objects.get(Kind::Mkey, index);
        let context = entry.and_then(|entry| MkeyContext::from_prefix(&entry.context));
        index << 8 | context.map_or(0, |context| context.variant.into())
    }

    pub(super) fn create_mkey(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let create: CreateMkey = command.parse()?;
        let (context, uid) = (create.context, command.uid());
        let pd = self.state.objects.check_use(Id(Kind::Pd, context.pd), uid)?;
        if create.pg_access || context.access_mode_high != 0 || context.qpn != ANY_QP {
            return Err(Refusal::ATTRIBUTES);
        }
        let mut uses = vec![pd];
        let attr =
            MkeyAttr { pd: Pdn(context.pd), va: 0, iova: context.start, length: context.len, access: access(&context) };
        let (attr, space) = match context.access_mode {
            // UMR would give the key its memory.
            _ if context.free => (MkeyAttr { length: 0, ..attr }, Space::Host(self.dma.clone())),
            access_mode::PHYSICAL => {
                let range = if context.length64 { (0, u64::MAX) } else { (attr.iova, attr.length) };
                let attr = MkeyAttr { va: range.0, iova: range.0, length: range.1, ..attr };
                (attr, Space::Host(self.dma.clone()))
            }
            access_mode::MTT => {
                context.start.checked_add(context.len).ok_or(Refusal::KEY_RANGE)?;
                if create.umem_valid {
                    uses.push(Id(Kind::Umem, create.umem_id));
                }
                self.translated(command, &create, attr)?
            }
            _ => return Err(Refusal::ACCESS_MODE),
        };
        let key = self.nic.create_mkey_in(attr, space, context.variant)?;
        let index = key.0 >> 8;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Mkey, index), Entry { uid, uses, context, ..Entry::default() });
        created(output, index)
    }

    // A key whose pages follow the command or are those of a UMEM.
    fn translated(&self, command: &Command, create: &CreateMkey, attr: MkeyAttr) -> Result<(MkeyAttr, Space)> {
        let context = &create.context;
        if create.umem_valid {
            let (id, offset) = (Id(Kind::Umem, create.umem_id), create.umem_offset);
            let id = self.state.objects.check_use(id, command.uid())?;
            let pages = self.state.objects.find(id, 0)?.pages.clone().ok_or(Refusal::NO_OBJECT)?;
            let end = offset.checked_add(context.len).filter(|end| *end <= pages.len());
            end.ok_or(Refusal::UMEM_RANGE)?;
            return Ok((MkeyAttr { va: offset, ..attr }, Space::Pages(pages)));
        }
        let log_size = u32::from(context.log_page_size);
        let size = 1u64.checked_shl(log_size).ok_or(Refusal::PAGE_SIZE)?;
        let start = context.start & (size - 1);
        let list = command.after::<CreateMkey>();
        // The list is as long as the driver says, in pairs of pages.
        let given = (create.translations_actual as usize).saturating_mul(16).min(list.len());
        let pages = self.page_list(log_size, start, context.len, &list[..given])?;
        Ok((attr, Space::Pages(pages)))
    }

    pub(super) fn query_mkey(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let id = Id(Kind::Mkey, command.number()?);
        let entry = self.state.objects.find(id, command.uid())?;
        let context = MkeyContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        answer(output, QueryMkeyReply { context })
    }
}
