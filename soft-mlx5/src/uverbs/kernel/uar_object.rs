//! UAR pages as objects: a library that asks for them manages the registers in them itself.
//!
//! As on an adapter under many QPs, it then gives few QPs registers of their own and lets the others share.

use super::Call;
use super::async_event::Reported;
use super::attrs::{Attrs, CONSTANT, Carries, Spec, room};
use super::errno::{EINVAL, EOPNOTSUPP};
use super::uar::{self, object_offset};
use crate::commands::objects::{Id, Kind};
use crate::objects::Result;

/// A UAR page.
#[derive(Debug)]
pub struct UarObject {
    /// Its index at the device.
    pub page: u32,
    // Its number in the offsets of mappings.
    number: u32,
}

/// Object type (`MLX5_IB_OBJECT_UAR`).
pub const TYPE: u16 = 0x1008;

const HANDLE: u16 = 0x1000;
const ALLOC_TYPE: u16 = 0x1001;
const MMAP_OFFSET: u16 = 0x1002;
const MMAP_LENGTH: u16 = 0x1003;
const PAGE_ID: u16 = 0x1004;

/// Attributes of the allocation.
pub const ALLOC: &[Spec] = &[
    Spec::needs(HANDLE, Carries::New),
    Spec::needs(ALLOC_TYPE, CONSTANT),
    Spec::needs(MMAP_OFFSET, room(8)),
    Spec::needs(MMAP_LENGTH, room(4)),
    Spec::needs(PAGE_ID, room(4)),
];
/// Attributes of the destruction.
pub const DESTROY: &[Spec] = &[Spec::needs(HANDLE, Carries::Handle)];

// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF` and `_NC`: to a model all mappings are alike.
const ALLOC_TYPES: u32 = 2;
const PAGE: u32 = 4096;

/// Allocates a page.
pub fn alloc(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.context()?;
    if attrs.constant(ALLOC_TYPE)? >= ALLOC_TYPES {
        return Err(EOPNOTSUPP);
    }
    let uid = call.uid();
    let page = uar::allocate(&mut call.core.commands.objects, uid)?;
    let number = call.context()?.add_object_page(page);
    let handle = call.handles().insert(vec![Id(Kind::Uar, page)], UarObject { page, number });
    let answered = attrs
        .put(MMAP_OFFSET, &object_offset(number))
        .and_then(|()| attrs.put(MMAP_LENGTH, &PAGE))
        .and_then(|()| attrs.put(PAGE_ID, &page))
        .and_then(|()| attrs.put_new(HANDLE, handle));
    call.or_destroy(handle, answered)
}

/// Destroys a page.
pub fn destroy(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.destroy(attrs.handle(HANDLE)?, TYPE).map(drop)
}

impl Call<'_> {
    pub(super) fn destroy_uar(&mut self, handle: u32) -> Result<Reported> {
        let object: &UarObject = self.get(handle)?;
        let number = object.number;
        self.context()?.remove_object_page(number);
        Ok(Reported::default())
    }

    /// Checks that a page, as CREATE_CQ and CREATE_QP name it, is one of this file.
    pub(super) fn check_uar_page(&mut self, page: u32) -> Result<u32> {
        let handles = self.handles();
        let all = handles.of_type(TYPE);
        let known =
            all.into_iter().any(|handle| handles.get::<UarObject>(handle).is_ok_and(|object| object.page == page));
        if known { Ok(page) } else { Err(EINVAL) }
    }
}
