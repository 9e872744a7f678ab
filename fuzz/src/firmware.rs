//! Commands of a driver to the firmware of a function, doorbells and memory: each command is executed or refused with
//! its reason, and after a reset no object is left.

use std::ptr;
use std::sync::{Arc, OnceLock};

use mlx5_wire::firmware::command::{Numbered, Opcode, Reply, Request};
use soft_mlx5::LinkLayer;
use soft_mlx5::engine::NicConfig;
use soft_mlx5::pci::{Access, Dma, Function, Interrupts, Piece};

use crate::input::Input;
use crate::templates::{self, PAGE, templates};

/// Begins an operation, see [`run`].
pub mod op {
    /// `kind: u8`, a template or else an opcode; then `answer: u8`, `uid: u8`, `changes: u8`, and for each
    /// `word: u8, value: u32`.
    pub const COMMAND: u8 = 0;
    /// `page: u8`, `offset: u16`, `value: u64`: a write to a trapped UAR page.
    pub const DOORBELL: u8 = 1;
    /// `time: u16`: the device works that many microseconds later.
    pub const STEP: u8 = 2;
    /// `offset: u16` in units of eight bytes, `value: u64`: into the memory of the host.
    pub const POKE: u8 = 3;
    /// The link goes down, or up again.
    pub const LINK: u8 = 4;
    /// Number of operations.
    pub const COUNT: u8 = 5;
}

const PAGES: u64 = 64;
/// Words of a bare command.
const BARE: usize = 0x60;
/// Room for answers.
const ROOM: [usize; 8] = [0x10, 0x1010, 0x110, 0x10, 8, 12, 0, 0x210];
/// Objects that the templates need, and the numbers of the first ones.
const BASE: [(Opcode, u32); 3] =
    [(Opcode::ALLOC_UAR, templates::UAR), (Opcode::ALLOC_PD, templates::PD), (Opcode::ALLOC_TRANSPORT_DOMAIN, 1)];

/// Memory of the host: pages between two that cannot be accessed.
#[derive(Debug)]
struct Host(u64);

impl Host {
    fn new() -> Self {
        let len = ((PAGES + 2) * PAGE) as usize;
        // SAFETY: a new mapping, of which all but the first and last page become accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let inner = base.cast::<u8>().add(PAGE as usize);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(inner.cast(), (PAGES * PAGE) as usize, rights), 0);
            Self(inner as u64)
        }
    }

    fn clear(&self) {
        // SAFETY: the pages of this value, to which no references exist.
        unsafe { (self.0 as *mut u8).write_bytes(0, (PAGES * PAGE) as usize) };
    }

    fn poke(&self, word: u64, value: u64) {
        // SAFETY: inside the pages of this value, to which no references exist.
        unsafe { (self.0 as *mut u64).add((word % (PAGES * PAGE / 8)) as usize).write_volatile(value.to_be()) };
    }
}

// SAFETY: the pages are never unmapped, and no references to them exist.
unsafe impl Dma for Host {
    fn translate(&self, address: u64, access: Access) -> Option<Piece> {
        // The first page does not exist, and the last cannot be written.
        let end = if access == Access::Write { PAGES - 1 } else { PAGES };
        let inside = (1..end).contains(&(address / PAGE));
        inside.then(|| Piece { address: self.0 + address, len: PAGE - address % PAGE })
    }
}

#[derive(Debug)]
struct Nobody;

impl Interrupts for Nobody {
    fn raise(&mut self, _: u32) {}
}

struct Target {
    host: Arc<Host>,
    templates: Vec<Vec<u8>>,
}

/// Returns all opcodes that have a name.
pub(crate) fn opcodes() -> &'static [Opcode] {
    static OPCODES: OnceLock<Vec<Opcode>> = OnceLock::new();
    OPCODES.get_or_init(|| (0..0x1000).map(Opcode).filter(|opcode| opcode.name().is_some()).collect())
}

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| Target { host: Arc::new(Host::new()), templates: templates() })
}

/// Executes a command. A refusal has its status and a known syndrome, and nothing else.
fn execute(function: &mut Function, input: &[u8], room: usize) -> Vec<u8> {
    let mut output = vec![0xee; room];
    function.execute(input, &mut output);
    if let Some(head) = Reply::from_prefix(&output).filter(|head| head.status != 0) {
        let refusal = Function::explain(head.syndrome).expect("a syndrome of this device");
        assert_eq!(head.status, refusal.status as u8);
        assert!(output[Reply::SIZE..].iter().all(|byte| *byte == 0), "a refusal with an answer");
    }
    output
}

fn numbered(function: &mut Function, opcode: Opcode, number: u32) -> Option<u32> {
    let input = Numbered { request: Request::new(opcode), number, ..Numbered::ZERO };
    let output = execute(function, &input.to_bytes(), Numbered::SIZE);
    let answer = Numbered::from_prefix(&output)?;
    (output[0] == 0).then_some(answer.number)
}

/// Starts a function and makes the objects that the templates name.
fn start(function: &mut Function, target: &Target) {
    numbered(function, Opcode::ENABLE_HCA, 0).expect("enabled");
    numbered(function, Opcode::INIT_HCA, 0).expect("initialized");
    for (opcode, number) in BASE {
        assert_eq!(numbered(function, opcode, 0), Some(number), "{:?}", opcode.name());
    }
    for command in &target.templates {
        let name = Request::from_prefix(command).and_then(|request| Opcode(request.opcode).name());
        if matches!(name, Some("CREATE_EQ" | "CREATE_CQ" | "CREATE_QP")) {
            assert_eq!(execute(function, command, 16)[0], 0, "{name:?}");
        }
    }
}

fn command(input: &mut Input, target: &Target, function: &mut Function) -> Option<()> {
    let (kind, answer, uid, changes) = (usize::from(input.u8()?), input.u8()?, input.u8()?, input.u8()?);
    let mut bytes = match target.templates.get(kind) {
        Some(template) => template.clone(),
        None => {
            let opcode = opcodes()[(kind - target.templates.len()) % opcodes().len()];
            let mut bytes = vec![0; 4 * BARE];
            let uid = u16::from(uid & 3);
            Request { uid, op_mod: u16::from(uid > 1), ..Request::new(opcode) }.put(bytes.first_chunk_mut()?);
            bytes
        }
    };
    for _ in 0..changes % 8 {
        let (word, value) = (usize::from(input.u8()?), input.u32()?);
        let at = 4 * (word % (bytes.len() / 4));
        // The opcode stays.
        let at = if at == 0 { 4 } else { at };
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    if changes & 0x80 != 0 {
        bytes.truncate(bytes.len().min(usize::from(answer) * 4));
    }
    execute(function, &bytes, ROOM[usize::from(answer) % ROOM.len()]);
    Some(())
}

/// Powers a function up, starts it, and executes `bytes`: first the link layer, then operations as [`op`] lists them.
pub fn run(bytes: &[u8]) {
    let target = target();
    target.host.clear();
    let mut input = Input(bytes);
    let link_layer = if input.u8() == Some(1) { LinkLayer::InfiniBand } else { LinkLayer::Ethernet };
    let mut config = NicConfig::default();
    config.link_layer = link_layer;
    let mut function = Function::new(config, target.host.clone(), Box::new(Nobody)).expect("a function");
    start(&mut function, target);
    let (mut now, mut up) = (0, true);
    while let Some(operation) = input.u8() {
        let done = match operation % op::COUNT {
            op::COMMAND => command(&mut input, target, &mut function),
            op::DOORBELL => (|| {
                let (page, offset, value) = (input.u8()?, input.u16()?, input.u64()?);
                let offset = usize::from(offset) % (PAGE as usize - 8);
                let len = 1 << (page >> 6);
                function.write_uar(templates::UAR + u32::from(page & 3), offset, &value.to_be_bytes()[..len]);
                Some(())
            })(),
            op::STEP => input.u16().map(|time| {
                now += u64::from(time) * 1000;
                function.step(now);
            }),
            op::POKE => (|| {
                target.host.poke(input.u16()?.into(), input.u64()?);
                Some(())
            })(),
            _ => {
                up = !up;
                function.set_link(up);
                Some(())
            }
        };
        if done.is_none() {
            break;
        }
    }
    for _ in 0..4 {
        now += 1000;
        function.step(now);
    }
    function.reset();
    assert_eq!(function.objects(), 0, "a reset leaves objects");
    assert!(!function.has_queue_pairs(), "a reset leaves queue pairs");
}
