//! INFO_HANDLES: which handles of one object type are in use.

use super::Call;
use super::abi::Abi;
use super::attrs::{Attrs, CONSTANT, Carries, Spec, room};
use crate::objects::Result;

const OBJECT: u16 = 0;
const TOTAL: u16 = 1;
const LIST: u16 = 2;

/// Attributes.
pub const SPECS: &[Spec] =
    &[Spec::needs(OBJECT, CONSTANT), Spec::takes(TOTAL, room(4)), Spec::needs(LIST, Carries::Out(4, u16::MAX))];

/// Lists as many handles as there is room for.
pub fn run(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.context()?;
    let type_id = attrs.constant(OBJECT)? as u16;
    let mut handles = call.handles().of_type(type_id);
    handles.reverse();
    handles.truncate(attrs.output(LIST).len / 4);
    let bytes: Vec<u8> = handles.iter().flat_map(|handle| handle.to_bytes()).collect();
    attrs.output(LIST).put_bytes(&bytes)?;
    attrs.mark_written(LIST)?;
    attrs.put(TOTAL, &(handles.len() as u32))
}
