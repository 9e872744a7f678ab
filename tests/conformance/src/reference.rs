//! The twin that libibverbs and the stock libmlx5 drive.

use std::ptr;
use std::sync::OnceLock;

use rdma_core_sys as sys;

use crate::twin::Objects;
use crate::verbs;

/// Why a receive was not posted, as both twins say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Full,
    TooManyEntries,
    Other(i32),
}

/// Posts receives to queue `queue`, with one call. Returns how many were taken.
pub fn post(objects: &Objects, queue: usize, receives: &[(u64, Vec<sys::ibv_sge>)]) -> (usize, Option<Refusal>) {
    let mut sges: Vec<Vec<sys::ibv_sge>> = receives.iter().map(|(_, entries)| entries.clone()).collect();
    let mut wrs: Vec<_> = receives
        .iter()
        .zip(&mut sges)
        .map(|((id, _), entries)| sys::ibv_recv_wr {
            wr_id: *id,
            next: ptr::null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: entries.len() as i32,
        })
        .collect();
    // SAFETY: the queue is alive, the list can be read, and the memory that it names is read only while
    // the device rests.
    let post = |first, bad: &mut _| unsafe {
        if objects.srq.is_null() {
            sys::ibv_post_recv(objects.qps[queue], first, bad)
        } else {
            sys::ibv_post_srq_recv(objects.srq, first, bad)
        }
    };
    let (taken, errno) = verbs::post_list(&mut wrs, |wr| &mut wr.next, post);
    let refusal = match errno {
        0 => None,
        libc::ENOMEM => Some(Refusal::Full),
        libc::EINVAL => Some(Refusal::TooManyEntries),
        errno => Some(Refusal::Other(errno)),
    };
    (taken, refusal)
}

/// Takes the events that have come, and asks for the next one.
pub fn arm(objects: &Objects, solicited_only: bool) {
    verbs::take_events(objects.channel);
    // SAFETY: the CQ is alive.
    let errno = unsafe { sys::ibv_req_notify_cq(objects.cq, i32::from(solicited_only)) };
    verbs::done(errno, "ibv_req_notify_cq");
}

/// Takes a QP to RESET. libmlx5 then discards its CQEs in the CQ.
pub fn reset(objects: &Objects, qp: usize) {
    verbs::to(objects.qps[qp], &[sys::IBV_QPS_RESET, sys::IBV_QPS_INIT]);
}

/// Returns the file name of the libmlx5 in this process.
pub fn library() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let name = maps.lines().find_map(|line| line.rsplit('/').next().filter(|name| name.contains("libmlx5")));
    name.map(str::to_owned)
}

/// Returns `true` if the drop-in is preloaded: then it serves the twin of doorbell, through libibverbs.
pub fn is_dropped_in() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("libdoorbell_drop_in"))
    })
}

/// Has the drop-in, if there is one, leave objects alone.
const PATH: &str = "DOORBELL_PATH";

/// Makes the twin of libmlx5.
pub fn make<T>(twin: impl FnOnce() -> T) -> T {
    // SAFETY: the program has one thread.
    unsafe { std::env::set_var(PATH, "libmlx5") }
    let twin = twin();
    // SAFETY: as above.
    unsafe { std::env::remove_var(PATH) }
    twin
}

/// Returns `true` while the twin of libmlx5 is made.
pub fn is_being_made() -> bool {
    std::env::var_os(PATH).is_some()
}

/// Returns `true` if libmlx5 is known to append freed slots of an SRQ to its list in the order in which they were
/// freed, as doorbell does. Newer versions look for a run of free slots.
pub fn appends_freed_slots() -> bool {
    static APPENDS: OnceLock<bool> = OnceLock::new();
    *APPENDS.get_or_init(|| library().is_some_and(|name| name.contains(".24.44.")))
}
