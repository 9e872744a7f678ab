//! A list that takes no operations any more.

use doorbell::tags::{CancelError, ListFailure, Offload, TagEvent, TagFailure};
use doorbell_tests::by_hand::no_memory;
use doorbell_tests::{
    assert_matches, device, skip,
    tags::{ALL, SHAPE, between, ways},
};
use rdma_core_sys as sys;

/// What the library itself has to post is refused by the driver: no word of the device's is put into its mouth.
#[test]
fn an_operation_that_cannot_be_posted_is_an_error() {
    if !ways().contains(&Offload::Required) {
        skip!("the device does not match tags");
    }
    let context = device::open_unpoisoned();
    if device::drives_directly(&context) {
        skip!("the list is posted to without the driver");
    }
    let pd = context.alloc_pd().unwrap();
    let (mut near, mut far) = between(&pd, (Offload::Required, Offload::Never), &SHAPE);
    // Arrives before the receive does, which then tells the device too little.
    far.deliver(2, 0, &[]);
    let receive = near.post(1, ALL);
    // SAFETY: an open context with the extended entries, which nobody uses at the moment.
    unsafe { (*sys::verbs_get_ctx(context.as_raw())).post_srq_ops = Some(no_memory) };
    let event = near.event();
    let cause = ListFailure::Verbs(libc::ENOMEM);
    assert_matches!(event, TagEvent::Broken { cause: reported } if reported == cause);
    assert!(cause.to_string().contains("Cannot allocate memory"), "{cause}");
    let refused = near.tags.post(3, ALL, near.pool.take().unwrap()).unwrap_err();
    assert_eq!(refused.reason, TagFailure::Broken(cause));
    assert_eq!(near.tags.cancel(receive), Err(CancelError::Broken(cause)));
}
