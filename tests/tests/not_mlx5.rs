//! A device of another vendor has the verbs path only.
//!
//! No such device is needed: the `ibv_query_device` of this program comes before that of libibverbs, and
//! reports another vendor on request.

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell::{CqConfig, DataPath, Error, NotDirect, PoolConfig, QpConfig, Receiver, SrqConfig};
use doorbell_tests::{Peers, assert_matches, device, skip};
use rdma_core_sys as sys;

static OTHER_VENDOR: AtomicBool = AtomicBool::new(false);

/// The vendor identifier of Broadcom.
const BROADCOM: u32 = 0x14e4;

type QueryDevice = unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut sys::ibv_context, attr: *mut sys::ibv_device_attr) -> c_int {
    // SAFETY: a string; the function has this signature; the arguments are the caller's.
    unsafe {
        let real = libc::dlsym(libc::RTLD_NEXT, c"ibv_query_device".as_ptr());
        assert!(!real.is_null());
        let errno = transmute::<*mut libc::c_void, QueryDevice>(real)(context, attr);
        if errno == 0 && OTHER_VENDOR.load(Ordering::Relaxed) {
            (*attr).vendor_id = BROADCOM;
        }
        errno
    }
}

#[test]
fn the_direct_path_is_refused_and_the_verbs_path_works() {
    if device::path() == DataPath::Direct {
        skip!("it is about the other path");
    }
    OTHER_VENDOR.store(true, Ordering::Relaxed);
    let context = device::open_unpoisoned();
    assert_eq!(context.attr().vendor_id, BROADCOM);
    let (path, reason) = context.auto_path();
    assert_eq!((path, reason), (DataPath::Verbs, Some(NotDirect::NotMlx5)));

    let pd = context.alloc_pd().unwrap();
    let make = |path| Receiver::new(&pd, &CqConfig::new(4096).path(path));
    let error = make(DataPath::Direct).unwrap_err();
    assert_matches!(&error, Error::NotDirect { device, reason: NotDirect::NotMlx5 }
            if *device == context.name());
    assert!(error.to_string().contains("DataPath::Verbs"), "{error}");

    let mut receiver = make(DataPath::Auto).unwrap();
    assert_eq!(receiver.path(), DataPath::Verbs);
    let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
    let pool = doorbell::BufferPool::new(&pd, &PoolConfig::new(32, 64)).unwrap();
    let (_near, mut peers) = Peers::connect(&pd, &mut receiver, &QpConfig::rc(), srq, 1, 64);
    receiver.fill(srq, &pool).unwrap();
    peers.exchange(&mut receiver, 0, 100);
}
