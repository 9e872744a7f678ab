//! Protection domains.

use super::Call;
use super::abi::uverbs::Respond;
use super::async_event::Reported;
use super::attrs::{Attrs, Carries, Spec, room};
use super::udata::Request;
use crate::commands::objects::{Id, Kind};
use crate::objects::{Pdn, Result};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    /// Its number at the device.
    pub pdn: Pdn,
}

impl Call<'_> {
    pub(super) fn destroy_pd(&mut self, handle: u32) -> Result<Reported> {
        let pdn = self.get::<Pd>(handle)?.pdn;
        self.nic().dealloc_pd(pdn)?;
        Ok(Reported::default())
    }

    /// Undoes the creation of an object whose answer could not be delivered.
    pub(super) fn or_destroy(&mut self, handle: u32, answered: Result<()>) -> Result<()> {
        if answered.is_err() {
            let type_id = self.handles().type_id(handle)?;
            let _ = self.destroy_object(handle, type_id);
        }
        answered
    }
}

/// Runs ALLOC_PD.
pub fn alloc(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let _: Respond = request.core.input.request()?;
    call.admit(super::PD)?;
    let pdn = call.nic().alloc_pd()?;
    let handle = call.enter(Id(Kind::Pd, pdn.0), &[], Pd { pdn });
    let answered = request.driver.output.put(&pdn.0);
    let answered = answered.and_then(|()| request.core.output.respond(&handle));
    call.or_destroy(handle, answered)
}

/// Number of a domain, for a program that imports it.
pub mod query {
    use super::*;

    pub const HANDLE: u16 = 0x1000;
    pub const RESP_PDN: u16 = 0x1001;
    pub const SPECS: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle), Spec::needs(RESP_PDN, room(4))];

    pub fn run(call: &mut Call, attrs: &Attrs) -> Result<()> {
        let pdn = call.get::<Pd>(attrs.handle(HANDLE)?)?.pdn;
        attrs.put(RESP_PDN, &pdn.0)
    }
}
