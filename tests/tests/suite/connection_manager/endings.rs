//! Connections that end, and queue pairs that are used again.

use std::thread;
use std::time::Duration;

use doorbell::Error;
use doorbell_tests::skip;
use doorbell_tests::{assert_matches, descriptor::is_readable};

use super::{PATIENCE, Side, ask, connect, first_address, join, listen, request};

/// Long enough for an event that is about to come, short enough to wait for an event that does not come.
const SOON: Duration = Duration::from_millis(50);

#[test]
fn the_end_makes_the_descriptor_of_a_connection_readable() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let [(near_qp, client), (_far_qp, mut server)] = connect(address, &mut near, &mut far);
    assert!(!is_readable(&server, SOON), "nothing has happened");
    client.disconnect(&near_qp).unwrap();
    assert!(is_readable(&server, PATIENCE));
    assert!(server.wait_disconnected(Duration::ZERO).unwrap());
    // The end is reported once, and known from then on.
    assert!(server.wait_disconnected(Duration::ZERO).unwrap());
}

#[test]
fn a_peer_that_does_not_answer_the_end_refuses_the_queue_pair_and_says_why() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let [(mut near_qp, mut client), (far_qp, server)] = connect(address, &mut near, &mut far);
    client.disconnect(&near_qp).unwrap();
    assert!(!client.wait_disconnected(SOON).unwrap(), "the server says nothing");
    near_qp.reset(&mut near.receiver).unwrap();
    let (mut listener, to) = listen(address);
    let refused = ask(to, &mut near_qp, b"").unwrap_err();
    assert_matches!(refused, Error::Rejected { reason: 10, .. });
    assert!(refused.to_string().contains("wait_disconnected"), "{refused}");

    // Once the server has answered, it is welcome.
    server.disconnect(&far_qp).unwrap();
    let mut again = far.qp();
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask(to, &mut near_qp, b"again"));
        let request = request(&mut listener);
        assert!(request.private_data().starts_with(b"again\0"));
        let _server = request.accept(&mut again, b"", PATIENCE).unwrap();
        asking.join().unwrap().unwrap();
    });
}

#[test]
fn both_sides_may_end_it_and_meet_again_at_once() {
    let address = first_address!();
    let (mut near, mut far) = (Side::new(), Side::new());
    let [(mut near_qp, client), (mut far_qp, server)] = connect(address, &mut near, &mut far);
    let mut ends = Some([client, server]);
    for _ in 0..5 {
        let [mut client, mut server] = ends.take().unwrap();
        let end: &doorbell::QueuePair = &far_qp;
        thread::scope(|scope| {
            let answering = scope.spawn(|| {
                assert!(server.wait_disconnected(PATIENCE).unwrap());
                server.disconnect(end)
            });
            client.disconnect(&near_qp).unwrap();
            assert!(client.wait_disconnected(PATIENCE).unwrap());
            answering.join().unwrap().unwrap();
        });
        near_qp.reset(&mut near.receiver).unwrap();
        far_qp.reset(&mut far.receiver).unwrap();
        ends = Some(join(address, &mut near_qp, &mut far_qp));
        near_qp.send_inline(b"still here", None).unwrap();
        far.expect(b"still here");
    }
}
