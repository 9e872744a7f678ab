//! Group F: sleeping until something arrives.

use std::os::fd::AsRawFd;
use std::time::Duration;

use doorbell::Completions;
use doorbell::raw::rdma_core_sys::ibv_req_notify_cq;

use super::check::{Check, Needs};
use super::lab::Lab;
use super::messages::Request;
use super::pair::{Pair, Shape};
use super::stop::{Stop, fail};

pub const CHECKS: &[Check] = &[
    Check {
        id: "F36",
        name: "an armed CQ raises its event when something arrives, and not before",
        needs: Needs::Device,
        run: arm,
    },
    Check { id: "F37", name: "arming at the moment of an arrival loses nothing", needs: Needs::Device, run: race },
    Check { id: "F38", name: "an event for solicited messages only", needs: Needs::Device, run: solicited },
];

/// For an event that has been raised already, or never will be.
const SURE: Duration = Duration::from_secs(3);
/// For an event that must not come.
const QUIET: Duration = Duration::from_millis(20);

fn readable(pair: &Pair, within: Duration) -> Result<bool, Stop> {
    let Some(channel) = pair.receiver.channel() else { return fail("no completion channel") };
    let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    Ok(unsafe { libc::poll(&mut poll, 1, within.as_millis() as i32) } == 1)
}

fn arm(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    for round in 0..20 {
        if pair.receiver.arm()? {
            return fail("an empty CQ says that something has arrived");
        }
        if round < 3 && readable(&pair, QUIET)? {
            return fail("an event before anything has arrived");
        }
        pair.send(0, b"wake", None)?;
        if !readable(&pair, SURE)? {
            return fail("no event though a message has arrived");
        }
        pair.take(1)?;
        pair.all_sent(0)?;
    }
    let again = if announces_again(lab)? { "again" } else { "not again" };
    Ok(format!("20 times; what was announced and not taken is {again} announced to the next arming"))
}

/// Arms a CQ whose only CQE was announced by an event and is not taken. Returns `true` if that raises an event, which
/// no document says. One more message must.
fn announces_again(lab: &Lab) -> Result<bool, Stop> {
    let mut pair = Pair::new(lab, &Shape { watched: false, ..Shape::new(lab) })?;
    pair.receiver.arm()?;
    pair.send(0, b"first", None)?;
    if !readable(&pair, SURE)? {
        return fail("no event though a message has arrived");
    }
    // Takes the event, and does not arm because of the CQE.
    if !pair.receiver.arm()? {
        return fail("the CQE of an event is not there");
    }
    // SAFETY: the CQ of a live queue pair. Neither library has polled it, so both are at its first CQE.
    let errno = unsafe { ibv_req_notify_cq((*pair.near_raw(0)).recv_cq, 0) };
    if errno != 0 {
        return fail(format!("ibv_req_notify_cq failed with errno {errno}"));
    }
    let again = readable(&pair, QUIET)?;
    pair.send(0, b"second", None)?;
    if !readable(&pair, SURE)? {
        return fail("no event for a message that arrived after a CQ with an unread CQE was armed");
    }
    pair.take(2)?;
    pair.all_sent(0)?;
    Ok(again)
}

fn race(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    let (mut before, mut count) = (0, 0);
    for round in lab.rounds(5000) {
        count = round + 1;
        pair.send(0, b"now", None)?;
        for _ in 0..lab.random(200) {
            std::hint::spin_loop();
        }
        if pair.receiver.arm()? {
            before += 1;
        } else if !readable(&pair, SURE)? {
            return fail(format!("no event in round {round}, though a message arrived after the CQ was armed"));
        }
        pair.take(1)?;
    }
    pair.all_sent(0)?;
    Ok(format!("{count} times; in {before} of them the message was faster"))
}

fn solicited(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    if pair.receiver.arm_solicited()? {
        return fail("an empty CQ says that something has arrived");
    }
    pair.send(0, b"hush", None)?;
    pair.all_sent(0)?;
    if readable(&pair, QUIET)? {
        return fail("an event for a message whose sender did not ask for it");
    }
    let loud = b"loud".as_slice();
    pair.post(0, &Request::Send { bytes: loud.into(), imm: None, solicited: true })?;
    if !readable(&pair, SURE)? {
        return fail("no event for a message whose sender asked for it");
    }
    pair.take(2)?;
    Ok(String::new())
}
