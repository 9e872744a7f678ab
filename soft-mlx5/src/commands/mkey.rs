//! Memory keys.

use mlx5_wire::firmware::mkey::{CreateMkey, MkeyContext, QueryMkeyReply, access_mode};

use super::Execution;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use crate::objects::memory::Space;
use crate::objects::mkey::{ANY_QP, Form, Mode, rights};
use crate::objects::{MkeyAttr, Pdn};

/// Bytes of a unit of a list.
const OCTOWORD: usize = 16;

impl Execution<'_> {
    pub(super) fn create_mkey(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let create: CreateMkey = command.parse()?;
        let (context, uid) = (create.context, command.uid());
        let pd = self.state.objects.check_use(Id(Kind::Pd, context.pd), uid)?;
        if context.access_mode_high != 0 {
            return Err(Refusal::ACCESS_MODE);
        }
        if create.pg_access || context.qpn != ANY_QP {
            return Err(Refusal::ATTRIBUTES);
        }
        let mut uses = vec![pd];
        let attr =
            MkeyAttr { pd: Pdn(context.pd), va: 0, iova: context.start, length: context.len, access: rights(&context) };
        let host = self.host.clone();
        let mut list = &[][..];
        let (attr, space) = match context.access_mode {
            access_mode::KLM | access_mode::KSM => {
                list = self.key_list(command, &create)?;
                let length = if context.length64 { u64::MAX } else { attr.length };
                (MkeyAttr { length, ..attr }, host)
            }
            // Programs reach no memory but that which was registered for them.
            access_mode::PHYSICAL if self.host.is_process() => return Err(Refusal::ACCESS_MODE),
            // UMR gives the key its memory.
            _ if context.free => (MkeyAttr { length: 0, ..attr }, host),
            access_mode::PHYSICAL => {
                let range = if context.length64 { (0, u64::MAX) } else { (attr.iova, attr.length) };
                let attr = MkeyAttr { va: range.0, iova: range.0, length: range.1, ..attr };
                (attr, host)
            }
            _ => {
                context.start.checked_add(context.len).ok_or(Refusal::KEY_RANGE)?;
                if self.is_umem(create.umem_valid) {
                    uses.push(Id(Kind::Umem, create.umem_id));
                }
                self.translated(command, &create, attr)?
            }
        };
        let mode = match context.access_mode {
            access_mode::MTT if context.umr_en => Mode::Pages,
            access_mode::KLM => Mode::Klm,
            access_mode::KSM => Mode::Ksm,
            _ => Mode::Direct,
        };
        let form = Form::of(&context, mode);
        let key = self.nic.create_formed_mkey(attr, form, space, list, Some(context.variant))?;
        let index = key.0 >> 8;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Mkey, index), Entry { uid, uses, context, ..Entry::default() });
        created(output, index)
    }

    // The list of other keys that follows the command, which a free key may lack.
    fn key_list<'a>(&self, command: &Command<'a>, create: &CreateMkey) -> Result<&'a [u8]> {
        let len = (create.translations_actual as usize).saturating_mul(OCTOWORD);
        command.after::<CreateMkey>().get(..len).ok_or(Refusal::PAGE_LIST)
    }

    // A key whose pages follow the command or are those of a UMEM.
    fn translated(&self, command: &Command, create: &CreateMkey, attr: MkeyAttr) -> Result<(MkeyAttr, Space)> {
        let context = &create.context;
        if self.is_umem(create.umem_valid) {
            let (space, va) = self.umem(create.umem_id, command.uid(), create.umem_offset, context.len)?;
            return Ok((MkeyAttr { va, ..attr }, space));
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
