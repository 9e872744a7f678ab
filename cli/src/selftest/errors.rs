//! Group E: errors that are provoked, and the device's reports of them.

use std::time::{Duration, Instant};

use doorbell::raw::SlotContext;
use doorbell::raw::mlx5_ring::receive::ReceiveRing;
use doorbell::raw::mlx5_ring::sge::Sge;
use doorbell::{Cause, DeviceEvent, WcStatus};
use mlx5_wire::cqe::ErrorCqe;
use mlx5_wire::opcode::CqeOpcode;
use mlx5_wire::syndrome::Syndrome;

use super::check::{Check, Needs};
use super::lab::{Lab, Patience};
use super::messages::Request;
use super::pair::{Pair, Shape};
use super::stop::{Stop, fail, same};
use super::witness::hex;

pub const CHECKS: &[Check] = &[
    Check { id: "E28", name: "a message longer than its receive", needs: Needs::Device, run: too_long },
    Check { id: "E29", name: "a receive with a key that does not exist", needs: Needs::Rings, run: bad_lkey },
    Check { id: "E30", name: "a WRITE with a key that the peer does not have", needs: Needs::Device, run: bad_rkey },
    Check { id: "E31", name: "no receive, and no retry", needs: Needs::Device, run: not_ready },
    Check { id: "E32", name: "a peer that does not answer", needs: Needs::Device, run: dead_peer },
    Check { id: "E33", name: "receives are flushed in order", needs: Needs::Device, run: flush },
    Check { id: "E34", name: "the limit of an SRQ raises its event", needs: Needs::Device, run: srq_limit },
    Check {
        id: "E35",
        name: "the last WQE of a queue pair on an SRQ raises its event",
        needs: Needs::Device,
        run: last_wqe,
    },
];

/// An error as a CQE reports it: syndrome and vendor syndrome.
type Code = (Syndrome, u8);

// The codes of soft-mlx5. Adapters were seen to report some of the vendor syndromes (docs/soft-mlx5.md).
const LENGTH: Code = (Syndrome::LOCAL_LENGTH, 0x8e);
const INVALID: Code = (Syndrome::REMOTE_INVAL_REQ, 0x8a);
const PROTECTION: Code = (Syndrome::LOCAL_PROT, 0x32);
const OPERATION: Code = (Syndrome::REMOTE_OP, 0x89);
const ACCESS: Code = (Syndrome::REMOTE_ACCESS, 0x88);
const NOT_READY: Code = (Syndrome::RNR_RETRY_EXC, 0x87);
const NO_ANSWER: Code = (Syndrome::TRANSPORT_RETRY_EXC, 0x81);
const FLUSHED: Code = (Syndrome::WR_FLUSH, 0xf9);

/// Compares the first CQE of an error with the expected codes; where CQEs are not watched, there is nothing to compare.
///
/// Programs act on the syndrome. Vendor syndromes differ between adapters and versions of firmware: they are noted.
fn report(
    lab: &mut Lab,
    (check, what): (&'static str, &str),
    cqes: Option<Vec<[u8; 64]>>,
    opcode: CqeOpcode,
    wanted: Code,
) -> Result<String, Stop> {
    let Some(cqes) = cqes else { return Ok(String::new()) };
    let mut errors = cqes.iter().filter(|bytes| matches!(bytes[63] >> 4, 13 | 14));
    let Some(first) = errors.next() else { return fail(format!("{what}: no CQE of an error")) };
    let cqe = ErrorCqe::from_bytes(first);
    let text = hex(&first[32..]);
    same(format!("{what}: opcode of its CQE ({text})"), &opcode.bits(), &(cqe.op_own >> 4))?;
    same(format!("{what}: syndrome ({text})"), &wanted.0.get(), &cqe.syndrome)?;
    let vendor = cqe.vendor_err_synd;
    if vendor != wanted.1 {
        lab.note(
            check,
            format!("{what}: vendor syndrome {vendor:#04x} where soft-mlx5 has {:#04x} ({text})", wanted.1),
        );
    }
    Ok(format!(
        "{what} {:02x}/{:02x}, hw {:02x}/{:02x}",
        cqe.syndrome, cqe.vendor_err_synd, cqe.hw_err_synd, cqe.hw_synd_type
    ))
}

/// The CQEs of the receives, if they are watched.
fn received(pair: &Pair) -> Option<Vec<[u8; 64]>> {
    pair.tap.as_ref().map(|tap| tap.seen.clone())
}

/// The reports of both sides; empty without taps.
fn both(near: &str, far: &str) -> String {
    if near.is_empty() { String::new() } else { format!("{near}; {far}") }
}

fn failed(what: &str, wanted: WcStatus, cause: Cause) -> Result<(), Stop> {
    same(format!("{what}: status"), &format!("{}", Cause::Status(wanted)), &format!("{cause}"))
}

fn sent(pair: &mut Pair, wanted: WcStatus) -> Result<(), Stop> {
    let (status, _) = pair.completed(0)?;
    same("status of the send", &wanted.to_string(), &status.to_string())
}

fn too_long(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape { buffer: 16, ..Shape::new(lab) })?;
    pair.send(0, &[7; 17], None)?;
    let (mut near, direct) = (String::new(), lab.direct);
    pair.receive(1, |message| match message {
        Ok(_) => fail("17 bytes were received into 16"),
        Err(failure) if direct => failed("the receive", WcStatus::LOC_LEN_ERR, failure.cause),
        // Other devices, such as Soft-RoCE, report another status.
        Err(failure) => {
            near = format!("receive: {}", failure.cause);
            Ok(())
        }
    })?;
    if !direct {
        let (status, _) = pair.completed(0)?;
        return Ok(format!("{near}; send: {status}"));
    }
    let near = report(lab, ("E28", "receive"), received(&pair), CqeOpcode::ResponderError, LENGTH)?;
    sent(&mut pair, WcStatus::REM_INV_REQ_ERR)?;
    let far = report(lab, ("E28", "send"), pair.sent_cqes(0), CqeOpcode::RequesterError, INVALID)?;
    Ok(both(&near, &far))
}

fn bad_lkey(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape { fill: false, ..Shape::new(lab) })?;
    let memory = pair.pool.take().ok_or("no buffer")?;
    let queue = pair.near[0].receive_queue().ok_or("no receive queue")?;
    // SAFETY: the queue pair fails before the memory is written, and the memory lives until it is destroyed.
    unsafe {
        let Some(mut rings) = pair.receiver.as_direct() else { return fail("no rings") };
        let (_, ring) = rings.rq(queue)?;
        let sge = Sge { addr: memory.as_ptr().expose_provenance() as u64, length: 16, lkey: 0x1234_5678 };
        ring.post(SlotContext::from_wr_id(7), &[sge]).map_err(|error| format!("{error:?}"))?;
        ring.ring_doorbell();
    }
    pair.send(0, b"nowhere", None)?;
    pair.arrived(1)?;
    let near = report(lab, ("E29", "receive"), received(&pair), CqeOpcode::ResponderError, PROTECTION)?;
    sent(&mut pair, WcStatus::REM_OP_ERR)?;
    let far = report(lab, ("E29", "send"), pair.sent_cqes(0), CqeOpcode::RequesterError, OPERATION)?;
    drop(pair);
    drop(memory);
    Ok(both(&near, &far))
}

fn bad_rkey(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { receives_with: |config| config.remote_write(true), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    pair.post(0, &Request::Write { address: 0x1000, key: 0x1234_5678 })?;
    sent(&mut pair, WcStatus::REM_ACCESS_ERR)?;
    report(lab, ("E30", "write"), pair.sent_cqes(0), CqeOpcode::RequesterError, ACCESS)
}

fn not_ready(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { fill: false, rnr_retry: 0, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    pair.send(0, b"early", None)?;
    sent(&mut pair, WcStatus::RNR_RETRY_EXC_ERR)?;
    report(lab, ("E31", "send"), pair.sent_cqes(0), CqeOpcode::RequesterError, NOT_READY)
}

fn dead_peer(lab: &mut Lab) -> Result<String, Stop> {
    const CODE: u8 = 10;
    let shape = Shape { timeout: (CODE, 1), ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let near = pair.near.remove(0);
    pair.receiver.destroy_qp(near)?;
    let began = Instant::now();
    pair.send(0, b"anybody?", None)?;
    let (status, _) = pair.completed_within(0, &Patience::of_acknowledgements())?;
    let spent = began.elapsed();
    same("status of the send", &WcStatus::RETRY_EXC_ERR.to_string(), &status.to_string())?;
    let report = report(lab, ("E32", "send"), pair.sent_cqes(0), CqeOpcode::RequesterError, NO_ANSWER)?;
    let asked = Duration::from_nanos(4096 << CODE);
    let times = format!("{:.0?} for each of two tries; code {CODE} is {asked:.1?}", spent / 2);
    Ok(if report.is_empty() { times } else { format!("{report}; {times}") })
}

fn flush(lab: &mut Lab) -> Result<String, Stop> {
    let mut pair = Pair::new(lab, &Shape::new(lab))?;
    for number in 0..5 {
        pair.send(0, &[number], None)?;
    }
    pair.all_sent(0)?;
    pair.receive(5, |message| {
        message?.take()?;
        Ok(())
    })?;
    pair.near[0].to_error()?;
    let mut count = 0;
    pair.receive(59, |message| match message {
        Err(failure) => {
            count += failure.buffers.len();
            failed("a flushed receive", WcStatus::WR_FLUSH_ERR, failure.cause)
        }
        Ok(_) => fail("a message after the last one"),
    })?;
    same("buffers that came back", &59, &count)?;
    if pair.tap.is_some() {
        let counters: Vec<usize> = pair.cqes().iter().map(super::layout::counter).collect();
        same("wqe_counter of the CQEs", &(0..64).collect(), &counters)?;
    }
    report(lab, ("E33", "flush"), received(&pair), CqeOpcode::ResponderError, FLUSHED)
}

fn event(lab: &Lab, what: &str, wanted: impl Fn(&DeviceEvent) -> bool) -> Result<(), Stop> {
    let mut events = lab.context.events()?;
    let began = Instant::now();
    // Adapters raise an event within microseconds. Another one never comes.
    while began.elapsed() < Duration::from_secs(3) {
        if events.next_within(Duration::from_millis(100))?.is_some_and(|event| wanted(&event)) {
            return Ok(());
        }
    }
    fail(format!("{what} does not come"))
}

fn srq_limit(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { srq: true, receives: 15, buffers: 15, ..Shape::new(lab) };
    let mut pair = Pair::new(lab, &shape)?;
    let srq = pair.srq.ok_or("no SRQ")?;
    pair.receiver.arm_srq_limit(srq, 10)?;
    // Nothing is posted again, so ten are left after the fifth, and nine after the sixth.
    for number in 0..6 {
        pair.send(0, &[number], None)?;
    }
    event(lab, "IBV_EVENT_SRQ_LIMIT_REACHED", |event| matches!(event, DeviceEvent::SrqLimitReached { .. }))?;
    Ok("9 of 15 receives left, the limit being 10".into())
}

fn last_wqe(lab: &mut Lab) -> Result<String, Stop> {
    let shape = Shape { srq: true, receives: 15, buffers: 15, ..Shape::new(lab) };
    let pair = Pair::new(lab, &shape)?;
    pair.near[0].to_error()?;
    let number = pair.near[0].qp_num();
    let last = event(
        lab,
        "IBV_EVENT_QP_LAST_WQE_REACHED",
        |event| matches!(event, DeviceEvent::LastWqeReached { qp_num } if *qp_num == number),
    );
    match last {
        Err(Stop::Fail(why)) if !lab.direct => {
            Err(Stop::Cannot(format!("{why} on this device, as on Soft-RoCE of Linux 6.1")))
        }
        last => last.map(|()| String::new()),
    }
}
