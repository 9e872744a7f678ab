//! The program reports to the device how many unexpected messages were handled.

use doorbell::tags::Offload;
use doorbell_tests::{
    receiving::wait,
    tags::{ALL, SHAPE, Shape, Side, pair, ways},
};

const MANUAL: Shape = Shape { manual: true, ..SHAPE };

/// Polls until all unexpected messages were reported to the device, or until they must be.
fn wait_until(side: &mut Side, needs_synchronization: bool) {
    wait("the state of the counts", || {
        side.tags.probe(0, 0);
        side.tags.needs_synchronization() == needs_synchronization
    });
}

/// A receive that is appended while a message for another one is on its way to software matches nothing on
/// the device until the program synchronises. It gets its messages all the same: from the library.
#[test]
fn the_device_does_not_match_until_the_program_synchronizes() {
    for way in ways().into_iter().filter(|way| *way == Offload::Required) {
        let (mut near, mut far) = pair(way, &MANUAL);
        far.send(0, 9, 0, &[]);
        // The message has arrived when the other side knows that it was received. The program has not polled yet.
        assert!(!far.sent());
        near.post(1, ALL);
        near.wait_unexpected(1);
        wait_until(&mut near, true);
        far.send(0, 1, 1, &[1]);
        let got = near.received();
        assert!(got.by_library, "matched by a device without the count");
        assert!(!far.sent());

        // The next receive reports both to the device, so it is matched there.
        near.post(2, ALL);
        far.send(0, 2, 2, &[2]);
        assert!(!near.received().by_library);
        assert!(!far.sent());

        // A synchronisation does so, too, for a receive that was appended too early.
        far.deliver(9, 3, &[]);
        near.post(3, ALL);
        near.wait_unexpected(2);
        wait_until(&mut near, true);
        // One at a time: more would fill the list of operations.
        (0..500).for_each(|_| near.tags.synchronize().unwrap());
        wait_until(&mut near, false);
        far.send(0, 3, 4, &[3]);
        let got = near.received();
        assert!(!got.by_library && got.context == 4);
    }
}

#[test]
fn order_holds_without_synchronisation() {
    for way in ways() {
        let (mut near, mut far) = pair(way, &MANUAL);
        for round in 0..200u32 {
            far.send(0, 1, 2 * round, &[]);
            let first = near.post(0, 0);
            let second = near.post(1, ALL);
            far.send(0, 1, 2 * round + 1, &[]);
            let mut got = [near.received(), near.received()].map(|got| (got.context, got.receive));
            got.sort_by_key(|(context, _)| *context);
            assert_eq!(got, [(2 * round, first), (2 * round + 1, second)], "{way:?}");
            (0..2).for_each(|_| assert!(!far.sent()));
        }
    }
}
