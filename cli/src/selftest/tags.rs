//! Group H: tag matching by the device.

use std::time::{Duration, Instant};

use doorbell::caps::LinkLayer;
use doorbell::tags::{Offload, Received, TagEvent, TagMatchingConfig, TagMatchingSrq, TaggedBuffer};
use doorbell::{BufferPool, CqConfig, PoolConfig, QpConfig};
use mlx5_wire::cqe::{APP_TAG_MATCHING, Cqe64};
use mlx5_wire::tm::AppOp;

use super::check::{Check, Needs};
use super::lab::{Lab, Patience};
use super::rings::Tap;
use super::stop::{Stop, fail, same};

pub const CHECKS: &[Check] = &[
    Check { id: "H42", name: "a message takes the oldest receive that matches", needs: Needs::Rings, run: oldest },
    Check { id: "H43", name: "masks, and unexpected messages", needs: Needs::Rings, run: unexpected },
    Check { id: "H44", name: "matching goes on after unexpected messages", needs: Needs::Rings, run: phases },
    Check { id: "H45", name: "CQEs of tag matching name the entry", needs: Needs::Rings, run: cqes },
];

const ALL: u64 = u64::MAX;

/// A tag-matching SRQ, and another that sends to it.
struct Sides {
    near: TagMatchingSrq,
    far: TagMatchingSrq,
    pool: BufferPool,
    to: doorbell::tags::PeerId,
    tap: Option<Tap>,
}

impl Sides {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        if lab.context.capabilities()?.tag_matching.is_none() {
            return Err(Stop::Cannot("the device does not match tags".into()));
        }
        // libmlx5 connects its own queue pair for the list without a GRH, which Ethernet needs: the SRQ cannot be made
        // there.
        let ethernet = lab.context.query_port(lab.port)?.link_layer == LinkLayer::Ethernet;
        let side = |offload| {
            let config =
                TagMatchingConfig::new(16).max_wr(64).cq(CqConfig::default().path(lab.path())).offload(offload);
            let mut side = match TagMatchingSrq::new(&lab.pd, &config) {
                Err(error) if ethernet && offload == Offload::Required => {
                    return Err(Stop::Cannot(format!("libmlx5 makes no tag-matching SRQ on this port: {error}")));
                }
                made => made?,
            };
            side.keep_filled(&BufferPool::new(&lab.pd, &PoolConfig::new(128, 576))?)?;
            Ok::<_, Stop>(side)
        };
        let (mut near, mut far) = (side(Offload::Required)?, side(Offload::Never)?);
        let config = QpConfig::rc().port(lab.port).max_send_wr(32).min_rnr_timer(1);
        let (from, to) = (near.add_peer(&config)?, far.add_peer(&config)?);
        let addresses = (near.address(from)?, far.address(to)?);
        near.connect(from, &addresses.1)?;
        far.connect(to, &addresses.0)?;
        let pool = BufferPool::new(&lab.pd, &PoolConfig::new(128, 512))?;
        let mut witness = lab.witness.borrow_mut();
        witness.made("queue pairs", 2);
        witness.made("CQs", 2);
        witness.made("SRQs with a tag list", 1);
        witness.made("SRQs", 1);
        drop(witness);
        let watched = lab.direct.then(|| Tap::new(near.as_raw_cq(), &lab.witness));
        Ok(Self { near, far, pool, to, tap: watched.transpose()? })
    }

    /// Lets the tap read the CQEs, then polls. The next [`look`](Self::look) reads CQEs that arrive between the two.
    fn poll(&mut self) -> Option<TagEvent> {
        self.look();
        self.near.next()
    }

    /// Lets the tap read all CQEs that it has not read yet, also those that a poll has taken.
    fn look(&mut self) {
        if let Some(tap) = &mut self.tap {
            let seen = tap.look();
            tap.take(seen);
        }
    }

    fn post(&mut self, tag: u64, mask: u64) -> Result<doorbell::tags::ReceiveId, Stop> {
        let buffer = self.pool.take().ok_or("no buffer")?;
        self.near.post(tag, mask, buffer).map_err(|error| Stop::Fail(error.to_string()))
    }

    fn send(&mut self, tag: u64, context: u32) -> Result<(), Stop> {
        let buffer = self.pool.take().ok_or("no buffer")?;
        let mut message = TaggedBuffer::new(buffer).map_err(|error| error.to_string())?;
        message.set_len(8);
        message.copy_from_slice(&tag.to_be_bytes());
        self.far.send(self.to, tag, context, message).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn received(&mut self) -> Result<Received, Stop> {
        let patience = Patience::new();
        loop {
            if let Some(TagEvent::PeerFailed { status, .. }) = self.far.next() {
                return fail(format!("the peer's send failed: {status}"));
            }
            match self.poll() {
                Some(TagEvent::Received(received)) => return Ok(received),
                Some(other) => return fail(format!("another event than a message: {other:?}")),
                None => patience.wait(|| "a message that no receive got".into())?,
            }
        }
    }

    /// Waits until `count` messages wait for their receive.
    fn wait_unexpected(&mut self, count: usize) -> Result<(), Stop> {
        let patience = Patience::new();
        while self.near.unexpected() < count {
            if let Some(event) = self.poll() {
                return fail(format!("an unexpected event: {event:?}"));
            }
            drop(self.far.next());
            patience.wait(|| format!("{} of {count} unexpected messages", self.near.unexpected()))?;
        }
        Ok(())
    }
}

fn oldest(lab: &mut Lab) -> Result<String, Stop> {
    let mut sides = Sides::new(lab)?;
    for round in lab.rounds(200) {
        let ids = [sides.post(5, ALL)?, sides.post(7, ALL)?, sides.post(5, ALL)?];
        for (tag, place) in [(5, 0), (5, 2), (7, 1)] {
            sides.send(tag, round)?;
            let got = sides.received()?;
            same(
                format!("round {round}: receive of the message with tag {tag}"),
                &format!("{:?}", ids[place]),
                &format!("{:?}", got.receive),
            )?;
            same("tag", &tag, &got.tag)?;
            same("bytes", &tag.to_be_bytes().to_vec(), &got.buffer.to_vec())?;
            same("whether the library matched", &false, &got.by_library)?;
        }
    }
    Ok("three entries, of which two have the same tag".into())
}

fn unexpected(lab: &mut Lab) -> Result<String, Stop> {
    let mut sides = Sides::new(lab)?;
    for round in lab.rounds(100) {
        // The mask ignores the lower 16 bits of the tag.
        let wide = sides.post(0x12_0000, 0xffff_0000)?;
        sides.send(0x12_3456, round)?;
        let got = sides.received()?;
        same("receive of a message that its mask lets in", &format!("{wide:?}"), &format!("{:?}", got.receive))?;
        same("whether the library matched", &false, &got.by_library)?;
        sides.send(9, round)?;
        sides.wait_unexpected(1)?;
        sides.post(9, ALL)?;
        let got = sides.received()?;
        same("tag of a message that came before its receive", &9, &got.tag)?;
        same("whether the library matched", &true, &got.by_library)?;
    }
    Ok(String::new())
}

fn phases(lab: &mut Lab) -> Result<String, Stop> {
    let mut sides = Sides::new(lab)?;
    let (mut by_device, mut rounds) = (0, 0);
    for round in lab.rounds(100) {
        rounds = round + 1;
        for tag in 0..3 {
            sides.send(100 + tag, round)?;
        }
        sides.wait_unexpected(3)?;
        for tag in 0..3 {
            sides.post(100 + tag, ALL)?;
            sides.received()?;
        }
        // The counts of unexpected messages must agree again, or the device matches nothing any more.
        let began = Instant::now();
        sides.post(1, ALL)?;
        while sides.near.needs_synchronization() && began.elapsed() < Duration::from_secs(3) {
            if let Some(event) = sides.poll() {
                return fail(format!("an unexpected event: {event:?}"));
            }
        }
        sides.send(1, round)?;
        by_device += u32::from(!sides.received()?.by_library);
    }
    if by_device == 0 {
        return fail(format!("the device matched none of {rounds} messages after unexpected ones"));
    }
    Ok(format!("{by_device} of {rounds} messages matched by the device"))
}

fn cqes(lab: &mut Lab) -> Result<String, Stop> {
    let mut sides = Sides::new(lab)?;
    sides.post(5, ALL)?;
    sides.post(5, ALL)?;
    sides.send(5, 0)?;
    sides.received()?;
    sides.send(9, 0)?;
    sides.wait_unexpected(1)?;
    // The poll that found the message may have taken a CQE that came after the look before it.
    sides.look();
    let tap = sides.tap.as_ref().ok_or("nothing watches the CQ")?;
    let all: Vec<Cqe64> = tap.seen.iter().map(Cqe64::from_bytes).collect();
    let tagged = all.iter().filter(|cqe| cqe.app == APP_TAG_MATCHING);
    let of = |operation: AppOp| tagged.clone().filter(move |cqe| cqe.app_op == operation.get());
    let entries: Vec<u16> = of(AppOp::APPEND).map(|cqe| cqe.app_info.get()).collect();
    let [first, second] = entries[..] else {
        return fail(format!("{} CQEs of two appends", entries.len()));
    };
    if first == second {
        return fail(format!("both appends are reported as entry {first:#x}"));
    }
    // The CQE comes with the data, or before.
    let matched = of(AppOp::CONSUMED_MSG).chain(of(AppOp::CONSUMED)).next();
    let Some(matched) = matched else { return fail("no CQE of the message that matched") };
    same("entry of the message that matched", &first, &matched.app_info.get())?;
    same("CQEs of messages that matched no entry", &1, &of(AppOp::UNEXPECTED).count())?;
    let operations: Vec<_> = tagged.map(|cqe| format!("{:#x}", cqe.app_op)).collect();
    Ok(format!("operations {}", operations.join(", ")))
}
