//! Changes of memory keys by WQEs: memory windows, lists of other keys, invalidations.

use mlx5_wire::cqe::Cqe64;
use mlx5_wire::ctrl::{CQ_UPDATE, FENCE};
use mlx5_wire::data::DataSegment;
use mlx5_wire::firmware::mkey::MkeyContext;
use mlx5_wire::opcode::{CqeOpcode, WqeOpcode};
use mlx5_wire::umr::{
    CHECK_FREE, CHECK_QPN, CHECK_VALID, INLINE, REPEAT, RepeatBlock, RepeatEntry, TRANSLATION_OFFSET, UmrControl, mask,
};

use super::program::*;
use crate::objects::memory::Space;
use crate::objects::mkey::{ANY_QP, Form, LOCAL_WRITE, MW_BIND, Mode, REMOTE_READ, REMOTE_WRITE};
use crate::objects::strict::Rule;
use crate::objects::*;

use CqeOpcode::{Requester, RequesterError, ResponderError, ResponderSendInv};

const LOCAL_QP_OP: u8 = 0x02;
const LOCAL_PROT: u8 = 0x04;
const FLUSH: u8 = 0x05;
const BIND: u8 = 0x06;
const REMOTE_INVALID: u8 = 0x12;
const REMOTE_ACCESS: u8 = 0x13;

const RIGHTS: u64 = mask::LOCAL_WRITE | mask::REMOTE_READ | mask::REMOTE_WRITE | mask::ATOMIC;
const RANGE: u64 = mask::LEN | mask::START;

/// A change of a key, as libmlx5 writes it.
struct Umr {
    key: u32,
    flags: u8,
    mask: u64,
    context: MkeyContext,
    units: u16,
    offset: u16,
    list: Vec<u8>,
}

impl Umr {
    /// Binds a window of type 2: bytes `start..start + len` of the region `lkey`.
    fn bind(window: u32, variant: u8, qpn: u32, lkey: u32, start: u64, len: u32) -> Self {
        let context = MkeyContext {
            remote_read: true,
            remote_write: true,
            qpn,
            variant,
            start,
            len: len.into(),
            ..MkeyContext::ZERO
        };
        Self {
            key: window,
            flags: INLINE | CHECK_FREE | TRANSLATION_OFFSET,
            mask: mask::FREE | mask::KEY | mask::QPN | RANGE | RIGHTS,
            context,
            units: 4,
            offset: 0,
            list: DataSegment::new(start, len, lkey).to_bytes().to_vec(),
        }
    }

    /// Frees a key as libmlx5 does.
    fn invalidate(key: u32) -> Self {
        Self {
            key,
            flags: INLINE | CHECK_QPN | TRANSLATION_OFFSET,
            mask: mask::FREE | mask::KEY | mask::QPN,
            context: MkeyContext { free: true, qpn: ANY_QP, ..MkeyContext::ZERO },
            units: 0,
            offset: 0,
            list: Vec::new(),
        }
    }

    /// Gives a key this list.
    fn configure(key: u32, entries: &[[u8; 16]], len: u64) -> Self {
        let context = MkeyContext {
            local_write: true,
            remote_read: true,
            remote_write: true,
            atomic: true,
            len,
            qpn: ANY_QP,
            variant: key as u8,
            ..MkeyContext::ZERO
        };
        Self {
            key,
            flags: INLINE,
            mask: mask::FREE | mask::KEY | mask::LEN | RIGHTS,
            context,
            units: entries.len().next_multiple_of(4) as u16,
            offset: 0,
            list: entries.concat(),
        }
    }

    fn work(&self) -> Work {
        let control = UmrControl {
            flags: self.flags,
            xlt_octowords: self.units.into(),
            xlt_offset: self.offset.into(),
            mkey_mask: self.mask.into(),
            ..UmrControl::zeroed()
        };
        let work = Work::new(WqeOpcode::UMR).imm(self.key);
        let work = work.bytes(&control.to_bytes()).bytes(&self.context.to_bytes()).bytes(&self.list);
        let padding = if self.flags & INLINE != 0 { self.list.len().next_multiple_of(64) - self.list.len() } else { 0 };
        work.bytes(&vec![0; padding])
    }
}

fn setup() -> Setup {
    let mut s = Setup::new(Path::default());
    s.key = s.device.register(&s.memory, ALL_ACCESS | MW_BIND);
    s
}

impl Setup {
    /// Makes a free key with room for eight entries.
    fn free_key(&mut self, form: Form) -> u32 {
        let attr = MkeyAttr { pd: self.device.pd, va: 0, iova: 0, length: 0, access: 0 };
        let form = Form { umr: true, free: true, capacity: 8 * 16, ..form };
        self.device.nic.create_formed_mkey(attr, form, Space::Process, &[], None).unwrap().0
    }

    fn window(&mut self) -> u32 {
        self.free_key(Form { mode: Mode::Klm, remote_invalidate: true, window: true, ..Form::default() })
    }

    fn list_key(&mut self) -> u32 {
        self.free_key(Form { mode: Mode::Klm, ..Form::default() })
    }

    /// Changes a key at the responder.
    #[track_caller]
    fn change(&mut self, umr: &Umr) {
        let index = self.device.post(&mut self.b, &umr.work());
        self.device.settle();
        let cqe = self.send.expect(Requester, &self.b, index);
        assert_eq!(cqe.sop_drop_qpn.get() >> 24, 0x25);
    }

    /// Binds a window to `len` bytes at `at` of the memory; returns its key.
    #[track_caller]
    fn bind(&mut self, window: u32, at: u64, len: u32) -> u32 {
        let variant = (window as u8).wrapping_add(1);
        let start = self.memory.addr() + at;
        self.change(&Umr::bind(window, variant, self.b.number.0, self.key, start, len));
        window & !0xff | u32::from(variant)
    }

    /// Writes to the responder's memory; returns the syndrome, or `None` if the WRITE succeeds.
    #[track_caller]
    fn write(&mut self, raddr: u64, rkey: u32, bytes: &[u8]) -> Option<u8> {
        self.outcome(&Work::new(WqeOpcode::RDMA_WRITE).remote(raddr, rkey).inline(bytes))
    }

    /// Reads `len` bytes of the responder's memory to the end of the memory.
    #[track_caller]
    fn read(&mut self, raddr: u64, rkey: u32, len: u32) -> Option<u8> {
        let work = Work::new(WqeOpcode::RDMA_READ).remote(raddr, rkey);
        self.outcome(&work.data(self.memory.addr() + 32768, len, self.key))
    }

    #[track_caller]
    fn outcome(&mut self, work: &Work) -> Option<u8> {
        self.device.post(&mut self.a, work);
        self.device.settle();
        failure(&self.send.poll().expect("a completion"))
    }

    #[track_caller]
    fn expect_refused(&mut self, umr: &Umr, syndrome: u8) {
        let index = self.device.post(&mut self.b, &umr.work());
        self.device.settle();
        self.send.expect_error(RequesterError, &self.b, index, syndrome);
        assert_eq!(self.device.state(&self.b), QpState::Err);
    }
}

fn failure(cqe: &Cqe64) -> Option<u8> {
    (cqe.opcode() == RequesterError).then(|| error(cqe).syndrome)
}

#[test]
fn a_window_gives_access_to_its_bytes_only() {
    for (offset, len, expected) in
        [(0, 8, None), (92, 8, None), (93, 8, Some(REMOTE_ACCESS)), (-1i64, 8, Some(REMOTE_ACCESS))]
    {
        let mut s = setup();
        let window = s.window();
        let rkey = s.bind(window, 4096, 100);
        let raddr = (s.memory.addr() + 4096).wrapping_add_signed(offset);
        assert_eq!(s.write(raddr, rkey, &vec![0xab; len]), expected, "{offset}");
        let written = s.memory.get(4096usize.wrapping_add_signed(offset as isize), len);
        assert_eq!(written == [0xab; 8], expected.is_none());
        assert!(expected.is_some() || s.read(raddr, rkey, len as u32).is_none());
    }
}

/// libmlx5 writes the fields of a bind that count, and leaves all others as an older WQE has them.
#[test]
fn fields_of_a_bind_that_do_not_count_hold_anything() {
    let mut s = setup();
    let window = s.window();
    let mut umr = Umr::bind(window, 1, s.b.number.0, s.key, s.memory.addr() + 64, 32);
    umr.context.length64 = true;
    umr.context.pd = 0xab_cdef;
    (umr.context.access_mode, umr.context.translations, umr.context.log_page_size) = (3, 77, 30);
    s.change(&umr);
    let (at, rkey) = (s.memory.addr() + 64, window & !0xff | 1);
    assert_eq!(s.write(at + 24, rkey, b"the last"), None);
    assert_eq!(s.write(at + 25, rkey, b"too late"), Some(REMOTE_ACCESS));
}

#[test]
fn a_window_can_begin_at_0() {
    let mut s = setup();
    let window = s.window();
    let mut umr = Umr::bind(window, 7, s.b.number.0, s.key, s.memory.addr() + 64, 32);
    umr.context.start = 0;
    s.change(&umr);
    assert_eq!(s.write(8, window & !0xff | 7, b"zero"), None);
    assert_eq!(s.memory.get(72, 4), b"zero");
}

#[test]
fn a_stale_variant_names_nothing() {
    for stale in [false, true] {
        let mut s = setup();
        let window = s.window();
        let first = s.bind(window, 0, 100);
        s.change(&Umr::invalidate(first));
        let second = s.bind(first, 0, 100);
        assert_eq!(second, first + 1);
        let at = s.memory.addr();
        assert_eq!(s.write(at, if stale { first } else { second }, b"x"), stale.then_some(REMOTE_ACCESS));
    }
}

#[test]
fn a_window_belongs_to_its_queue_pair() {
    let mut s = setup();
    let window = s.window();
    let at = s.memory.addr();
    // Bound at `a`, and named by a peer of `b`.
    let umr = Umr::bind(window, 1, s.a.number.0, s.key, at, 100);
    assert_eq!(s.outcome(&umr.work()), None);
    assert_eq!(s.write(at, window & !0xff | 1, b"x"), Some(REMOTE_ACCESS));
    // Nor may `b` invalidate it.
    let mut s = setup();
    let window = s.window();
    let umr = Umr::bind(window, 1, s.a.number.0, s.key, at, 100);
    assert_eq!(s.outcome(&umr.work()), None);
    s.expect_refused(&Umr::invalidate(window), BIND);
}

#[test]
fn a_window_is_no_lkey() {
    let mut s = setup();
    let window = s.window();
    let rkey = s.bind(window, 0, 100);
    s.b.post_receive(&[DataSegment::new(s.memory.addr(), 64, rkey)]);
    s.device.post(&mut s.a, &Work::send().inline(b"hello"));
    s.device.settle();
    s.recv.expect_error(ResponderError, &s.b, 0, LOCAL_PROT);
}

#[test]
fn a_send_invalidates_a_window() {
    let mut s = setup();
    let window = s.window();
    let rkey = s.bind(window, 0, 100);
    let at = s.memory.addr();
    assert_eq!(s.write(at, rkey, b"once"), None);
    let counter = s.receive(64);
    let send = Work::new(WqeOpcode::SEND_INVAL).imm(rkey).inline(b"done");
    assert_eq!(s.outcome(&send), None);
    let cqe = s.recv.expect(ResponderSendInv, &s.b, counter);
    assert_eq!(cqe.imm_inval_pkey.get(), rkey);
    // The window can be bound again, and the old key is refused.
    let next = s.bind(rkey, 0, 100);
    assert_eq!(s.write(at, next, b"more"), None);
    assert_eq!(s.write(at, rkey, b"late"), Some(REMOTE_ACCESS));
    assert_eq!(s.memory.get(0, 4), b"more");
}

#[test]
fn keys_that_no_peer_may_invalidate() {
    for case in 0..4 {
        let mut s = setup();
        let window = s.window();
        let rkey = match case {
            // A region, a key with another variant, a free key.
            0 => s.key,
            1 => s.bind(window, 0, 100) ^ 0x80,
            2 => window,
            _ => {
                let key = s.list_key();
                s.change(&Umr::configure(key, &[DataSegment::new(s.memory.addr(), 8, s.key).to_bytes()], 8));
                key
            }
        };
        let counter = s.receive(64);
        let send = Work::new(WqeOpcode::SEND_INVAL).imm(rkey).inline(b"done");
        assert_eq!(s.outcome(&send), Some(REMOTE_ACCESS), "{case}");
        s.recv.expect_error(ResponderError, &s.b, counter, REMOTE_INVALID);
    }
}

#[test]
fn a_key_revoked_while_a_read_is_under_way() {
    let config = crate::engine::NicConfig { small_steps: true, ..Default::default() };
    let pair = |device: &mut Device, send: &Cq, recv: &Cq| device.pair_with(|attr| attr, send, recv, Path::default());
    let mut s = Setup::with(Device::with(config), 256, pair);
    let key = s.list_key();
    let entry = DataSegment::new(s.memory.addr(), 32768, s.key).to_bytes();
    s.change(&Umr::configure(key, &[entry], 32768));
    s.memory.set(0, &[0xab; 32768]);
    let work = Work::new(WqeOpcode::RDMA_READ).remote(0, key);
    let read = s.device.post(&mut s.a, &work.data(s.memory.addr() + 32768, 32768, s.key));
    while s.memory.get(32768 + 1024, 1) != [0xab] {
        s.device.now += 100;
        s.device.nic.step(s.device.now);
    }
    // The responder has answered a part of the READ. Its queue pairs share the device with the requester's, and the
    // key belongs to none of them.
    let free = s.device.post(&mut s.a, &Umr::invalidate(key).work());
    s.device.settle();
    s.send.expect_error(RequesterError, &s.a, read, REMOTE_ACCESS);
    s.send.expect_error(RequesterError, &s.a, free, FLUSH);
    assert_eq!(s.memory.get(65535, 1), [0], "the rest was not sent");
    assert!(s.device.events().contains(&Event::QpAccessError(s.b.number)));
}

#[test]
fn an_answer_waits_for_no_change_without_a_fence() {
    // Frees the key into which an open READ writes.
    for fence in [0, FENCE] {
        let mut s = setup();
        let key = s.list_key();
        let entry = DataSegment::new(s.memory.addr() + 32768, 8, s.key).to_bytes();
        assert_eq!(s.outcome(&Umr::configure(key, &[entry], 8).work()), None);
        let read = Work::new(WqeOpcode::RDMA_READ).remote(s.memory.addr(), s.key).data(0, 8, key);
        s.a.write(&read);
        s.device.post(&mut s.a, &Umr::invalidate(key).work().flags(CQ_UPDATE | fence));
        s.device.settle();
        let outcomes: Vec<_> = s.send.drain().iter().map(failure).collect();
        let expected = if fence == 0 { [Some(LOCAL_PROT), Some(FLUSH)] } else { [None, None] };
        assert_eq!(outcomes, expected, "{fence}");
    }
}

#[test]
fn a_change_waits_for_what_uses_its_key() {
    // The WRITE is sent again after a loss, and its key is free only then.
    let faults = crate::base::faults::Faults { loss: 0.4, ..Default::default() };
    let config = crate::engine::NicConfig { faults, seed: 3, ..Default::default() };
    let pair = |device: &mut Device, send: &Cq, recv: &Cq| device.pair_with(|attr| attr, send, recv, Path::default());
    let mut s = Setup::with(Device::with(config), 256, pair);
    for _ in 0..20 {
        let key = s.list_key();
        let entry = DataSegment::new(s.memory.addr() + 32768, 4096, s.key).to_bytes();
        s.device.post(&mut s.a, &Umr::configure(key, &[entry], 4096).work());
        let write = Work::new(WqeOpcode::RDMA_WRITE).remote(s.memory.addr(), s.key);
        s.device.post(&mut s.a, &write.data(0, 4096, key));
        s.device.post(&mut s.a, &Umr::invalidate(key).work());
        s.device.finish();
        assert_eq!(s.send.drain().iter().map(failure).collect::<Vec<_>>(), [None; 3]);
    }
}

#[test]
fn changes_follow_each_other_after_one_doorbell() {
    // NFS of Linux posts several registrations and a SEND so; the last WQE alone is signaled.
    let mut s = setup();
    let keys = [(); 3].map(|()| s.list_key());
    for key in keys {
        let entry = DataSegment::new(s.memory.addr() + 32768, 4096, s.key).to_bytes();
        s.a.write(&Umr::configure(key, &[entry], 4096).work().flags(0));
    }
    let write = Work::new(WqeOpcode::RDMA_WRITE).remote(s.memory.addr(), s.key).data(0, 8, keys[2]);
    let (index, ctrl) = s.a.write(&write);
    s.device.ring(&mut s.a, ctrl);
    s.device.settle();
    s.send.expect(Requester, &s.a, index);
}

#[test]
fn a_window_outside_its_region() {
    let mut s = setup();
    let window = s.window();
    let rkey = s.bind(window, 65536 - 50, 100);
    assert_eq!(s.device.nic.violations(Rule::WindowRange), 1);
    let at = s.memory.addr() + 65536;
    assert_eq!(s.read(at - 50, rkey, 50), None);
    assert_eq!(s.read(at - 50, rkey, 51), Some(REMOTE_ACCESS));
    // A region of another domain, and one that is none.
    for other in [true, false] {
        let mut s = setup();
        let window = s.window();
        if other {
            let pd = s.device.nic.alloc_pd().unwrap();
            let (va, length) = (s.memory.addr(), s.memory.len() as u64);
            let attr = MkeyAttr { pd, va, iova: va, length, access: ALL_ACCESS | MW_BIND };
            s.key = s.device.nic.create_mkey(attr).unwrap().0;
        } else {
            s.key ^= 1;
        }
        let rkey = s.bind(window, 0, 100);
        assert_eq!(s.device.nic.violations(Rule::WindowRange), 1);
        let at = s.memory.addr();
        assert_eq!(s.write(at, rkey, b"x"), Some(REMOTE_ACCESS));
    }
}

#[test]
fn a_bind_without_rights() {
    // Without the right to bind: an adapter does not know it.
    let mut s = setup();
    s.key = s.device.register(&s.memory, ALL_ACCESS);
    let window = s.window();
    let rkey = s.bind(window, 0, 100);
    assert_eq!(s.device.nic.violations(Rule::WindowRights), 1);
    let at = s.memory.addr();
    assert_eq!(s.write(at, rkey, b"x"), None);
    // Without the right to write: a window for reading is allowed.
    for writes in [true, false] {
        let mut s = setup();
        s.key = s.device.register(&s.memory, MW_BIND);
        let window = s.window();
        let mut umr = Umr::bind(window, 1, s.b.number.0, s.key, s.memory.addr(), 100);
        umr.context.remote_write = writes;
        s.change(&umr);
        assert_eq!(s.device.nic.violations(Rule::WindowRights), u64::from(writes));
        let at = s.memory.addr();
        assert_eq!(s.write(at, window & !0xff | 1, b"x"), Some(REMOTE_ACCESS));
    }
    // The rights of peers are those of the window alone.
    let mut s = setup();
    s.key = s.device.register(&s.memory, LOCAL_WRITE | MW_BIND);
    let window = s.window();
    let rkey = s.bind(window, 0, 100);
    let at = s.memory.addr();
    assert_eq!(s.write(at, rkey, b"x"), None);
}

#[test]
fn changes_that_a_key_refuses() {
    let s = setup();
    let pointed = s.memory.addr();
    for case in 0..8 {
        let mut s = setup();
        let key = s.list_key();
        let entry = DataSegment::new(s.memory.addr(), 8, s.key).to_bytes();
        let good = Umr::configure(key, &[entry], 8);
        let umr = match case {
            // No such key, a region, a key that must not be free.
            0 => Umr { key: key + 0x100, ..good },
            1 => Umr { key: s.key, ..good },
            2 => Umr { flags: INLINE | CHECK_VALID, ..good },
            // A key that must be free.
            3 => {
                s.change(&good);
                Umr { flags: INLINE | CHECK_FREE, ..good }
            }
            // Lists that are too long, and that end behind the room.
            4 => Umr::configure(key, &[entry; 9], 8),
            5 => Umr { flags: INLINE | TRANSLATION_OFFSET, offset: 5, ..good },
            // A key of another domain, and a list for a key without list.
            6 => {
                let pd = s.device.nic.alloc_pd().unwrap();
                let attr = MkeyAttr { pd, va: 0, iova: 0, length: 0, access: 0 };
                let form = Form { mode: Mode::Klm, umr: true, capacity: 64, ..Form::default() };
                let key = s.device.nic.create_formed_mkey(attr, form, Space::Process, &[], None).unwrap();
                Umr { key: key.0, ..good }
            }
            _ => {
                let key = s.free_key(Form::default());
                Umr { key, ..good }
            }
        };
        s.expect_refused(&umr, BIND);
    }
    for case in 0..5 {
        let mut s = setup();
        let key = s.list_key();
        let entry = DataSegment::new(s.memory.addr(), 8, s.key).to_bytes();
        let good = Umr::configure(key, &[entry], 8);
        let (umr, syndrome) = match case {
            // Sizes, a list that is not there, and pointers to nowhere.
            0 => (Umr { units: 2, ..good }, LOCAL_QP_OP),
            1 => (Umr { units: 8, ..good }, LOCAL_QP_OP),
            2 => (Umr { flags: 0, list: Vec::new(), ..good }, LOCAL_QP_OP),
            3 => (
                Umr { flags: 0, list: DataSegment::new(pointed & !2047, 64, s.key ^ 1).to_bytes().to_vec(), ..good },
                LOCAL_PROT,
            ),
            _ => (Umr { flags: 0, list: DataSegment::new(!2047, 64, s.key).to_bytes().to_vec(), ..good }, LOCAL_PROT),
        };
        s.expect_refused(&umr, syndrome);
    }
    // Segments are missing.
    let mut s = setup();
    let index = s.device.post(&mut s.b, &Work::new(WqeOpcode::UMR).imm(s.key).bytes(&[0; 96]));
    s.device.settle();
    s.send.expect_error(RequesterError, &s.b, index, LOCAL_QP_OP);
}

#[test]
fn only_what_the_mask_names_changes() {
    let mut s = setup();
    let key = s.list_key();
    let entry = DataSegment::new(s.memory.addr(), 8, s.key).to_bytes();
    s.change(&Umr::configure(key, &[entry], 8));
    // A context of other values, with a mask of nothing.
    let context = MkeyContext { free: true, pd: 77, start: 5, len: 1, variant: 9, qpn: 1, ..MkeyContext::ZERO };
    s.change(&Umr { mask: 0, flags: INLINE, units: 0, list: Vec::new(), context, key, offset: 0 });
    assert_eq!(s.write(0, key, b"12345678"), None);
    // Without the right to write.
    let reading = MkeyContext { remote_read: true, ..MkeyContext::ZERO };
    s.change(&Umr { mask: RIGHTS, flags: INLINE, units: 0, list: Vec::new(), context: reading, key, offset: 0 });
    assert_eq!(s.read(0, key, 8), None);
    assert_eq!(s.write(0, key, b"x"), Some(REMOTE_ACCESS));
}

#[test]
fn a_part_of_a_list_changes() {
    let mut s = setup();
    let key = s.list_key();
    let entry = |at: u64, s: &Setup| DataSegment::new(s.memory.addr() + at, 8, s.key).to_bytes();
    let first: Vec<_> = (0..8).map(|n| entry(16 * n, &s)).collect();
    s.change(&Umr::configure(key, &first, 64));
    let last: Vec<_> = (0..4).map(|n| entry(1024 + 16 * n, &s)).collect();
    let part = Umr::configure(key, &last, 64);
    s.change(&Umr { flags: INLINE | TRANSLATION_OFFSET, offset: 4, ..part });
    let text = pattern(1, 64);
    assert_eq!(s.write(0, key, &text), None);
    for (n, bytes) in text.chunks(8).enumerate() {
        let at = if n < 4 { 16 * n } else { 1024 + 16 * (n - 4) };
        assert_eq!(s.memory.get(at, 8), bytes);
    }
}

#[test]
fn lists_scatter_and_gather_locally_and_for_peers() {
    let mut s = setup();
    let key = s.list_key();
    let at = s.memory.addr();
    let pieces = [(0u64, 1000u32), (5000, 3), (9000, 2000)];
    let entries: Vec<_> = pieces.iter().map(|(to, len)| DataSegment::new(at + to, *len, s.key).to_bytes()).collect();
    s.change(&Umr::configure(key, &entries, 3003));
    let text = pattern(2, 3003);
    s.memory.set(20000, &text);
    let gathered = |s: &Setup| pieces.map(|(at, len)| s.memory.get(at as usize, len as usize)).concat();
    // WRITE by a peer.
    let write = Work::new(WqeOpcode::RDMA_WRITE).remote(0, key).data(at + 20000, 3003, s.key);
    assert_eq!(s.outcome(&write), None);
    assert_eq!(gathered(&s), text);
    // READ by a peer, from the middle.
    assert_eq!(s.read(999, key, 2004), None);
    assert_eq!(s.memory.get(32768, 2004), text[999..]);
    // SEND from the list, and into the list.
    for at in pieces {
        s.memory.set(at.0 as usize, &vec![0; at.1 as usize]);
    }
    let counter = s.b.post_receive(&[DataSegment::new(0, 3003, key)]);
    assert_eq!(s.outcome(&Work::send().data(at + 20000, 3003, s.key)), None);
    s.recv.expect(CqeOpcode::ResponderSend, &s.b, counter);
    assert_eq!(gathered(&s), text);
    let counter = s.b.post_receive(&[DataSegment::new(at + 40000, 3003, s.key)]);
    assert_eq!(s.outcome(&Work::send().data(0, 3003, key)), None);
    s.recv.expect(CqeOpcode::ResponderSend, &s.b, counter);
    assert_eq!(s.memory.get(40000, 3003), text);
    // Beyond the length of the key, though not of its list.
    let mut longer = Umr::configure(key, &entries, 3002);
    longer.flags = INLINE;
    s.change(&longer);
    assert_eq!(s.read(0, key, 3003), Some(REMOTE_ACCESS));
}

#[test]
fn an_atomic_goes_through_a_list_unless_its_word_is_cut() {
    for (first, expected) in [(16, None), (4, Some(REMOTE_INVALID))] {
        let mut s = setup();
        let key = s.list_key();
        let at = s.memory.addr();
        let entries = [DataSegment::new(at, first, s.key).to_bytes(), DataSegment::new(at + 64, 64, s.key).to_bytes()];
        s.change(&Umr::configure(key, &entries, 64));
        let add = Work::new(WqeOpcode::ATOMIC_FA).remote(0, key).bytes(&[[0; 7], [0; 7]].concat()).bytes(&[5, 0]);
        let add = add.data(at + 32768, 8, s.key);
        assert_eq!(s.outcome(&add), expected);
    }
}

#[test]
fn a_repeating_block_interleaves_memory() {
    let mut s = setup();
    let key = s.list_key();
    let at = s.memory.addr();
    let head = RepeatBlock {
        byte_count: 12.into(),
        op: REPEAT.into(),
        repeat_count: 3.into(),
        num_ent: 2.into(),
        ..RepeatBlock::zeroed()
    };
    let entry = |stride: u16, byte_count: u16, va: u64| RepeatEntry {
        stride: stride.into(),
        byte_count: byte_count.into(),
        memkey: s.key.into(),
        va: va.into(),
    };
    let entries = [head.to_bytes(), entry(16, 8, at).to_bytes(), entry(4, 4, at + 1024).to_bytes()];
    s.change(&Umr::configure(key, &entries, 36));
    assert_eq!(s.write(0, key, b"AAAAAAAAaaaaBBBBBBBBbbbbCCCCCCCCcccc"), None);
    assert_eq!(s.memory.get(0, 40), b"AAAAAAAA\0\0\0\0\0\0\0\0BBBBBBBB\0\0\0\0\0\0\0\0CCCCCCCC");
    assert_eq!(s.memory.get(1024, 12), b"aaaabbbbcccc");
    assert_eq!(s.write(33, key, b"XXXX"), Some(REMOTE_ACCESS));
}

#[test]
fn keys_lead_to_keys_up_to_a_depth() {
    let mut s = setup();
    let mut inner = (s.key, s.memory.addr());
    for depth in 1..=5 {
        let key = s.list_key();
        let entry = DataSegment::new(inner.1, 64, inner.0).to_bytes();
        s.change(&Umr::configure(key, &[entry], 64));
        let outcome = s.write(0, key, &[depth; 8]);
        assert_eq!(outcome, (depth > 4).then_some(REMOTE_ACCESS), "{depth}");
        assert_eq!(s.memory.get(0, 8), [depth.min(4); 8]);
        inner = (key, 0);
    }
    // A key that leads to itself.
    let mut s = setup();
    let key = s.list_key();
    s.change(&Umr::configure(key, &[DataSegment::new(0, 64, key).to_bytes()], 64));
    assert_eq!(s.write(0, key, b"x"), Some(REMOTE_ACCESS));
}

#[test]
fn a_list_outside_the_wqe_is_aligned() {
    // The place of the list, its length, and whether that breaks the rule.
    for (place, len, broken) in [(4096u64, 64, 0), (4096 + 64, 64, 1), (4096, 32, 1), (4096, 80, 1)] {
        let mut s = setup();
        let key = s.list_key();
        let at = s.memory.addr();
        s.memory.set(place as usize, &DataSegment::new(at, 8, s.key).to_bytes());
        let entry = DataSegment::new(at + place, len, s.key).to_bytes();
        let umr = Umr::configure(key, &[entry], 8);
        s.change(&Umr { flags: 0, ..umr });
        assert_eq!(s.device.nic.violations(Rule::UmrList), broken);
        assert_eq!(s.write(0, key, b"pointed!"), None);
        assert_eq!(s.memory.get(0, 8), b"pointed!");
    }
}

#[test]
fn a_mask_names_fields() {
    let mut s = setup();
    let key = s.list_key();
    let entry = DataSegment::new(s.memory.addr(), 8, s.key).to_bytes();
    let umr = Umr::configure(key, &[entry], 8);
    s.change(&Umr { mask: umr.mask | 1 << 63, ..umr });
    assert_eq!(s.device.nic.violations(Rule::UmrMask), 1);
    assert_eq!(s.write(0, key, b"x"), None);
}

#[test]
fn signatures_are_refused() {
    let mut s = setup();
    let key = s.list_key();
    let umr = Umr::configure(key, &[DataSegment::new(s.memory.addr(), 8, s.key).to_bytes()], 8);
    s.expect_refused(&Umr { mask: umr.mask | mask::BSF, ..umr }, LOCAL_QP_OP);
    assert_eq!(s.device.nic.violations(Rule::Signature), 1);
    let mut s = setup();
    let index = s.device.post(&mut s.b, &Work::new(WqeOpcode::SET_PSV).bytes(&[0; 16]));
    s.device.settle();
    s.send.expect_error(RequesterError, &s.b, index, LOCAL_QP_OP);
    assert_eq!(s.device.nic.violations(Rule::Signature), 1);
}

#[test]
fn a_key_of_equal_entries() {
    let mut s = setup();
    let at = s.memory.addr();
    let entries =
        [DataSegment::new(at + 8, 0, s.key).to_bytes(), DataSegment::new(at + 16384 + 8, 0, s.key).to_bytes()];
    let attr = MkeyAttr {
        pd: s.device.pd,
        va: 0,
        iova: 0x7000_0008,
        length: 8192,
        access: LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE,
    };
    let form = Form { mode: Mode::Ksm, log_size: 12, ..Form::default() };
    let key = s.device.nic.create_formed_mkey(attr, form, Space::Process, &entries.concat(), None).unwrap().0;
    assert_eq!(s.write(0x7000_0008 + 4094, key, b"split"), None);
    assert_eq!(s.memory.get(8 + 4094, 2), b"sp");
    assert_eq!(s.memory.get(16384 + 8, 3), b"lit");
    assert_eq!(s.write(0x7000_0008 + 8192, key, b"x"), Some(REMOTE_ACCESS));
}
