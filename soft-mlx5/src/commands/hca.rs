//! Life of the function: enable, capabilities, pages, init, teardown.

use mlx5_wire::firmware::capabilities::{GROUP, GROUP_SIZE, General, group};
use mlx5_wire::firmware::command::{
    ManagePages, OfFunction, QueryAdapterReply, QueryIssiReply, QueryPagesReply, SetIssi, TeardownHca,
};
use mlx5_wire::firmware::fields::Value;

use super::opcodes::{Command, Result, answer};
use super::refusal::Refusal;
use super::stage::Stage;
use super::{Execution, capabilities};
use crate::fabric::LinkLayer;

/// The function as a whole.
#[derive(Debug)]
pub struct Hca {
    /// State.
    pub stage: Stage,
    /// Version of the interface.
    issi: u16,
    // Largest values of the general capabilities, and the values that the driver has set.
    maximum: General,
    current: General,
}

const HIGHEST_ISSI: u16 = 1;
const CURRENT: u16 = 1;
/// Modifiers of MANAGE_PAGES.
const CANNOT_GIVE: u16 = 0;
const GIVE: u16 = 1;
const TAKE_BACK: u16 = 2;
/// Modifiers of QUERY_PAGES.
const BOOT_PAGES: u16 = 1;
const REGULAR_PAGES: u16 = 3;
const PCI_VENDOR: u16 = 0x15b3;
const PSID: &[u8; 16] = b"SOFT000000001\0\0\0";

impl Hca {
    /// Returns the state after reset.
    pub fn new(layer: LinkLayer) -> Self {
        let maximum = capabilities::general(layer);
        Self { stage: Stage::Disabled, issi: 0, maximum, current: maximum }
    }

    /// Returns the state that the driver of a process leaves.
    pub fn of_process(layer: LinkLayer) -> Self {
        let maximum = capabilities::of_process(layer);
        Self { stage: Stage::Initialized, issi: HIGHEST_ISSI, maximum, current: maximum }
    }
}

fn put<T: Value>(image: &mut [u8], value: T) {
    if let Some(bytes) = image.get_mut(..T::SIZE) {
        value.write(bytes, 0, 0);
    }
}

impl Execution<'_> {
    /// Other functions are none of this driver's.
    fn check_function(command: &Command) -> Result {
        let of: OfFunction = command.parse()?;
        if of.function_id == 0 { Ok(()) } else { Err(Refusal::FUNCTION) }
    }

    pub(super) fn enable_hca(&mut self, command: &Command, _: &mut [u8]) -> Result {
        Self::check_function(command)?;
        if self.state.hca.stage != Stage::Disabled {
            return Err(Refusal::ENABLED);
        }
        self.state.hca.stage = Stage::Enabled;
        Ok(())
    }

    pub(super) fn disable_hca(&mut self, command: &Command, _: &mut [u8]) -> Result {
        Self::check_function(command)?;
        if self.state.hca.stage != Stage::Enabled {
            return Err(Refusal::STATE);
        }
        self.reset();
        Ok(())
    }

    pub(super) fn query_issi(&mut self, _: &Command, output: &mut [u8]) -> Result {
        let supported = 1 << HIGHEST_ISSI;
        answer(output, QueryIssiReply { current: self.state.hca.issi, supported, ..QueryIssiReply::ZERO })
    }

    pub(super) fn set_issi(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let SetIssi { current, .. } = command.parse()?;
        if current > HIGHEST_ISSI {
            return Err(Refusal::ISSI);
        }
        if self.state.hca.stage != Stage::Enabled {
            return Err(Refusal::STATE);
        }
        self.state.hca.issi = current;
        Ok(())
    }

    /// The device has memory of its own: no state asks for pages.
    pub(super) fn query_pages(&mut self, command: &Command, output: &mut [u8]) -> Result {
        Self::check_function(command)?;
        if !(BOOT_PAGES..=REGULAR_PAGES).contains(&command.request.op_mod) {
            return Err(Refusal::UNKNOWN_MODIFIER);
        }
        answer(output, QueryPagesReply::ZERO)
    }

    pub(super) fn manage_pages(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let ManagePages { function_id, entries, .. } = command.parse()?;
        if function_id != 0 {
            return Err(Refusal::FUNCTION);
        }
        match command.request.op_mod {
            CANNOT_GIVE => Ok(()),
            GIVE if entries == 0 => Ok(()),
            GIVE => Err(Refusal::PAGES),
            // The answer counts the pages that are given back, which are none.
            TAKE_BACK => answer(output, QueryPagesReply::ZERO),
            _ => Err(Refusal::UNKNOWN_MODIFIER),
        }
    }

    pub(super) fn query_hca_cap(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let (number, which) = (command.request.op_mod >> 1, command.request.op_mod & 1);
        let general = if which == CURRENT { self.state.hca.current } else { self.state.hca.maximum };
        let image = &mut [0; GROUP_SIZE];
        match number {
            group::GENERAL => put(image, general),
            group::ATOMIC => put(image, capabilities::ATOMIC),
            group::ETHERNET if general.eth_net_offloads => put(image, capabilities::ETHERNET),
            group::ROCE if general.roce => put(image, capabilities::ROCE),
            group::FLOW_TABLE if general.nic_flow_table => put(image, capabilities::FLOW_TABLES),
            // Drivers of machines find no memory behind the bus.
            group::DEVICE_MEMORY if self.host.is_process() => put(image, capabilities::DEVICE_MEMORY),
            _ => return Err(Refusal::GROUP),
        }
        // Programs that know fewer capabilities have room for fewer.
        for (to, from) in output[GROUP..].iter_mut().zip(image) {
            *to = *from;
        }
        Ok(())
    }

    /// Sets what a driver may choose. The other fields stay, whatever it writes there.
    pub(super) fn set_hca_cap(&mut self, command: &Command, _: &mut [u8]) -> Result {
        if self.state.hca.stage != Stage::Enabled {
            return Err(Refusal::STATE);
        }
        let image = command.input.get(GROUP..).unwrap_or_default();
        let number = command.request.op_mod >> 1;
        if !matches!(number, group::GENERAL | group::ATOMIC | group::ROCE) {
            return Err(Refusal::GROUP);
        }
        let wanted = General::from_prefix(image).ok_or(Refusal::INPUT_LENGTH)?;
        if number != group::GENERAL {
            // The driver chooses the byte order of atomics among one, and versions of RoCE that it does not use.
            return Ok(());
        }
        let maximum = self.state.hca.maximum;
        let too_much = wanted.log_max_qp > maximum.log_max_qp
            || wanted.pkey_table_size > maximum.pkey_table_size
            || wanted.log_uar_page_sz > maximum.log_uar_page_sz
            || wanted.cmdif_checksum > maximum.cmdif_checksum;
        if too_much {
            return Err(Refusal::CAPABILITY);
        }
        self.state.hca.current = General { log_max_qp: wanted.log_max_qp, ..maximum };
        Ok(())
    }

    pub(super) fn query_adapter(&mut self, _: &Command, output: &mut [u8]) -> Result {
        answer(
            output,
            QueryAdapterReply {
                ieee_vendor_id: capabilities::VENDOR_ID,
                vsd_vendor_id: PCI_VENDOR,
                psid: *PSID,
                ..QueryAdapterReply::ZERO
            },
        )
    }

    pub(super) fn init_hca(&mut self, _: &Command, _: &mut [u8]) -> Result {
        if self.state.hca.stage != Stage::Enabled {
            return Err(Refusal::STATE);
        }
        self.state.hca.stage = Stage::Initialized;
        Ok(())
    }

    /// Ends all objects that the driver has left, so that no memory of the host is touched afterwards.
    pub(super) fn teardown_hca(&mut self, command: &Command, _: &mut [u8]) -> Result {
        const GRACEFUL: u16 = 0;
        let TeardownHca { profile, .. } = command.parse()?;
        if profile != GRACEFUL {
            return Err(Refusal::PROFILE);
        }
        self.destroy_all();
        self.state.hca.stage = Stage::Enabled;
        Ok(())
    }
}
