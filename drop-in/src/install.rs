//! Putting the library's functions in the place of libmlx5's.
//!
//! A provider gives libibverbs its functions with `verbs_set_ops`, and libibverbs keeps them in a table of each context.
//! The layout of the table changes from version to version. The public part of a context shows most of what the table says,
//! so the places of the functions in the table are found by their values.

use core::ffi::{CStr, c_int, c_void};
use core::mem::{offset_of, transmute};
use core::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use rdma_core_sys::{ibv_context, mlx5dv_obj, verbs_context};

use crate::context::{self, Context, Original};
use crate::domain::Domains;
use crate::objects::{Path, Status};
use crate::provider::InitObj;
use crate::table::Table;
use crate::{arm, control, create, domain, log, poll, provider, receive, resize, send};

type SetOps = unsafe extern "C" fn(*mut c_void, *const c_void);
type Word = *const c_void;

/// More words than a context of libibverbs and its table have.
const TABLE_WORDS: usize = 256;

/// The objects that doorbell drives.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scope {
    /// All that are covered: the library is preloaded.
    All,
    /// Those that the program attaches, and those that are created on them later.
    Attached,
}

static IS_PRELOADED: AtomicBool = AtomicBool::new(false);

/// Asks before the program begins, as it may tidy its environment.
extern "C" fn at_load() {
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let is_preloaded = preload.to_string_lossy().contains("libdoorbell_drop_in");
    IS_PRELOADED.store(is_preloaded, Ordering::Relaxed);
    log::read_environment();
    if log::is_on() {
        // SAFETY: `in_child` reads and writes atomics and tries locks, which a child may do.
        unsafe { libc::pthread_atfork(None, None, Some(log::in_child)) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Stands in front of the function of libibverbs by which a provider gives its functions.
///
/// # Safety
/// As libibverbs asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn verbs_set_ops(vctx: *mut c_void, ops: *const c_void) {
    // The provider has the table, and was linked to the libibverbs that opens the context.
    let Some(real) = provider::beside(ops, c"verbs_set_ops") else {
        panic!("doorbell: libibverbs has no verbs_set_ops");
    };
    // SAFETY: libibverbs has a function of this name and type, which takes these arguments; then the context is being opened, and its
    // functions are set.
    unsafe {
        let real: SetOps = transmute(real);
        real(vctx, ops);
        if IS_PRELOADED.load(Ordering::Relaxed) {
            if let Some(ibv) = context_in(vctx) {
                install(ibv, Scope::All);
            }
        }
    }
}

/// Stands in front of the function of libmlx5 that tells a program where its queues are: a program that asks drives them.
///
/// # Safety
/// As libmlx5 asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    const WHY: &str = "the program has its memory from mlx5dv_init_obj";
    let mark = |status: &Status, what: &str, number: u32| {
        if status.path() == Path::Doorbell {
            log::warn(format_args!(
                "{what} {number:#x} is driven by doorbell already, and mlx5dv_init_obj hands it to the program: run it with DOORBELL_PATH=libmlx5"
            ));
        }
        status.set_uncovered(WHY);
    };
    // SAFETY: [verbs] each object whose bit is set is valid.
    unsafe {
        let has = |bit: u32| obj_type & u64::from(bit) != 0;
        if has(rdma_core_sys::MLX5DV_OBJ_QP) && is_installed((*(*obj).qp.in_).context) {
            let qp = (*obj).qp.in_;
            if let Some(record) = context::of((*qp).context).qps.get((*qp).qp_num) {
                mark(&record.status, "QP", record.qpn);
            }
        }
        if has(rdma_core_sys::MLX5DV_OBJ_CQ) && is_installed((*(*obj).cq.in_).context) {
            let cq = (*obj).cq.in_;
            if let Some(record) = context::of((*cq).context).cq(cq) {
                mark(&record.status, "CQ", (*cq).handle);
            }
        }
        if has(rdma_core_sys::MLX5DV_OBJ_SRQ) && is_installed((*(*obj).srq.in_).context) {
            let srq = (*obj).srq.in_;
            if let Some(record) = context::of((*srq).context).srq(srq) {
                mark(&record.status, "SRQ", (*srq).handle);
            }
        }
        // All objects are of one libmlx5.
        let contexts = [
            has(rdma_core_sys::MLX5DV_OBJ_QP).then(|| (*(*obj).qp.in_).context),
            has(rdma_core_sys::MLX5DV_OBJ_CQ).then(|| (*(*obj).cq.in_).context),
            has(rdma_core_sys::MLX5DV_OBJ_SRQ).then(|| (*(*obj).srq.in_).context),
            has(rdma_core_sys::MLX5DV_OBJ_RWQ).then(|| (*(*obj).rwq.in_).context),
            has(rdma_core_sys::MLX5DV_OBJ_DM).then(|| (*(*obj).dm.in_).context),
            has(rdma_core_sys::MLX5DV_OBJ_AH).then(|| (*(*obj).ah.in_).context),
            has(rdma_core_sys::MLX5DV_OBJ_PD).then(|| (*(*obj).pd.in_).context),
        ];
        let context = contexts.into_iter().flatten().next().unwrap_or(ptr::null_mut());
        match provider::beside(provider::function_of(context), c"mlx5dv_init_obj") {
            Some(init_obj) => transmute::<*mut c_void, InitObj>(init_obj)(obj, obj_type),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Returns the public context in the extended one, which grows at its front from version to version: the word before the
/// public context is the size of both.
///
/// # Safety
/// `vctx` is an extended context of libibverbs.
unsafe fn context_in(vctx: *mut c_void) -> Option<*mut ibv_context> {
    let word = size_of::<usize>();
    let sizes = (0..TABLE_WORDS * word).step_by(word);
    // SAFETY: each extended context has the word, so none after it is read. All before it are pointers, which no size is equal
    // to.
    let place = sizes.into_iter().find(|at| unsafe {
        vctx.byte_add(*at).cast::<usize>().read() == at + word + size_of::<ibv_context>()
    })?;
    // SAFETY: the place is inside of the extended context.
    Some(unsafe { vctx.byte_add(place + word).cast() })
}

/// Returns `true` if libmlx5 has this function.
fn is_libmlx5(function: Word) -> bool {
    let Some(found) = provider::file_of(function) else { return false };
    // SAFETY: the loader's name ends with a zero.
    let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libmlx5")
}

/// Returns `true` if the functions of this context are the library's.
///
/// # Safety
/// `ibv` is a context of libibverbs.
pub(crate) unsafe fn is_installed(ibv: *mut ibv_context) -> bool {
    // A program may put a function of its own in the place of one of them.
    context::is_open(ibv)
}

/// Returns the field at an offset of the extended context, by its distance from the public one.
///
/// # Safety
/// `ibv` is the public part of an extended context, and the field has this type.
unsafe fn extended<T>(ibv: *mut ibv_context, offset: usize) -> *mut T {
    // SAFETY: `ibv` is in an extended context, in which the field is in front of the public part.
    unsafe { ibv.byte_sub(offset_of!(verbs_context, context) - offset).cast() }
}

/// Replaces the functions of a context, if they are libmlx5's.
///
/// # Safety
/// `ibv` is a context of libibverbs whose functions are set, and no other thread opens, installs or closes it.
pub(crate) unsafe fn install(ibv: *mut ibv_context, scope: Scope) {
    // SAFETY: `ibv` is a context whose functions are set.
    let public = unsafe { &mut (*ibv).ops };
    let Some(poll_cq) = public.poll_cq.filter(|poll_cq| is_libmlx5(*poll_cq as Word)) else {
        return;
    };
    // SAFETY: `ibv` is a context.
    if unsafe { is_installed(ibv) } {
        // libmlx5 has several functions to poll, and decides for one in a second call.
        // SAFETY: the functions of `ibv` were replaced; no other code has the record yet.
        unsafe {
            let record: *const Context = context::of(ibv);
            (&raw mut (*record.cast_mut()).original.poll_cq).write(poll_cq);
        }
        public.poll_cq = Some(poll::poll_cq);
        return;
    }
    // The place of address vectors (`av`) is that of one libmlx5.
    static FIRST: OnceLock<usize> = OnceLock::new();
    let file = provider::file_of(poll_cq as Word).map_or(0, |found| found.dli_fbase as usize);
    if *FIRST.get_or_init(|| file) != file {
        log::say(format_args!("context: libmlx5 (it is a second libmlx5 of this process)"));
        return;
    }
    // SAFETY: `ibv` is a context whose functions are set, and `priv_` points to its table.
    let (table, original) = unsafe {
        let table = extended::<*mut Word>(ibv, offset_of!(verbs_context, priv_)).read();
        (table, originals(ibv, table, poll_cq))
    };
    let Some(original) = original else {
        log::warn(format_args!("this libmlx5 is not known: all stays with it"));
        return;
    };
    let is_single = std::env::var_os("MLX5_SINGLE_THREADED").is_some_and(|value| value == "1");
    let record = Context {
        ibv,
        original,
        qps: Table::new(),
        cqs: Table::new(),
        srqs: Table::new(),
        undecided_qps: Mutex::default(),
        has_windows: AtomicBool::new(false),
        domains: Domains::default(),
        is_shared: !is_single,
        scope,
    };
    // The functions look for the record.
    Box::new(record).publish();
    // SAFETY: `ibv` is a context whose functions are set, `table` its table, and `original` has its functions.
    unsafe { replace(ibv, table, &original, scope) };
}

/// Returns the place of a function in a table.
///
/// # Safety
/// `function` is in the table, if it is one of libmlx5.
unsafe fn place_of(table: *const Word, function: Word) -> Option<usize> {
    if !is_libmlx5(function) {
        return None;
    }
    // SAFETY: the function is found before the table ends.
    (0..TABLE_WORDS).find(|index| unsafe { *table.add(*index) } == function)
}

/// Reads the functions of libmlx5.
///
/// # Safety
/// As [`install`]; `table` is the table of `ibv`.
#[expect(clippy::missing_transmute_annotations, reason = "`Original` has the types")]
unsafe fn originals(
    ibv: *mut ibv_context,
    table: *const Word,
    poll_cq: context::PollCq,
) -> Option<Original> {
    // SAFETY: `ibv` is a context, and `table` its table. libibverbs keeps functions of the table under other types; in the
    // table they have the types that `Original` says.
    unsafe {
        let ops = &(*ibv).ops;
        let create_cq = place_of(table, transmute::<_, Word>(ops._compat_create_cq))?;
        // The table is in the order of the alphabet.
        let create_flow = extended::<Word>(ibv, offset_of!(verbs_context, ibv_create_flow)).read();
        let free_dm =
            place_of(table, extended::<Word>(ibv, offset_of!(verbs_context, free_dm)).read())?;
        let free_context = *table.add(free_dm - 1);
        if *table.add(create_cq + 2) != create_flow || !is_libmlx5(free_context) {
            return None;
        }
        let init_obj = provider::beside(poll_cq as Word, c"mlx5dv_init_obj")?;
        Some(Original {
            poll_cq,
            init_obj: transmute::<*mut c_void, InitObj>(init_obj),
            req_notify_cq: ops.req_notify_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
            post_srq_recv: ops.post_srq_recv?,
            alloc_parent_domain: extended::<Option<_>>(
                ibv,
                offset_of!(verbs_context, alloc_parent_domain),
            )
            .read()?,
            dealloc_pd: transmute(ops._compat_dealloc_pd?),
            alloc_mw: ops.alloc_mw?,
            bind_mw: ops.bind_mw?,
            create_qp_ex: extended::<Option<_>>(ibv, offset_of!(verbs_context, create_qp_ex))
                .read()?,
            create_srq_ex: extended::<Option<_>>(ibv, offset_of!(verbs_context, create_srq_ex))
                .read()?,
            create_wq: extended::<Option<_>>(ibv, offset_of!(verbs_context, create_wq)).read()?,
            create_cq: transmute(ops._compat_create_cq?),
            create_cq_ex: transmute(*table.add(create_cq + 1)),
            create_qp: transmute(ops._compat_create_qp?),
            create_srq: transmute(ops._compat_create_srq?),
            destroy_cq: transmute(ops._compat_destroy_cq?),
            destroy_qp: transmute(ops._compat_destroy_qp?),
            destroy_srq: transmute(ops._compat_destroy_srq?),
            modify_qp: transmute(ops._compat_modify_qp?),
            query_qp: transmute(ops._compat_query_qp?),
            resize_cq: transmute(ops._compat_resize_cq?),
            cq_event: transmute(ops._compat_cq_event?),
            free_context: transmute(free_context),
        })
    }
}

/// Puts the library's functions in the place of libmlx5's.
///
/// # Safety
/// As [`install`]; `table` is the table of `ibv`, and `original` has its functions.
unsafe fn replace(ibv: *mut ibv_context, table: *mut Word, original: &Original, scope: Scope) {
    // Objects that are not attached need no record.
    let creation: [(Word, Word); 3] = [
        (original.create_cq as Word, create::create_cq as Word),
        (original.create_cq_ex as Word, create::create_cq_ex as Word),
        (original.create_srq as Word, create::create_srq as Word),
    ];
    let all: [(Word, Word); 9] = [
        (original.dealloc_pd as Word, domain::dealloc_pd as Word),
        (original.create_qp as Word, create::create_qp as Word),
        (original.destroy_cq as Word, control::destroy_cq as Word),
        (original.destroy_qp as Word, control::destroy_qp as Word),
        (original.destroy_srq as Word, control::destroy_srq as Word),
        (original.modify_qp as Word, control::modify_qp as Word),
        (original.resize_cq as Word, resize::resize_cq as Word),
        (original.cq_event as Word, arm::cq_event as Word),
        (original.free_context as Word, context::free_context as Word),
    ];
    let creation = creation.into_iter().filter(|_| scope == Scope::All);
    for (theirs, our) in all.into_iter().chain(creation) {
        // SAFETY: `theirs` is in the table. Other threads may call functions of an open context: both functions do the same for
        // objects that have no record.
        unsafe {
            if let Some(place) = place_of(table, theirs) {
                (*table.add(place).cast::<AtomicPtr<c_void>>())
                    .store(our.cast_mut(), Ordering::Release);
            }
        }
    }
    // SAFETY: `ibv` is a context; each field gets a function of its type.
    unsafe {
        let public = &mut (*ibv).ops;
        public.poll_cq = Some(poll::poll_cq);
        public.req_notify_cq = Some(arm::req_notify_cq);
        public.post_send = Some(send::post_send);
        public.post_recv = Some(receive::post_recv);
        public.post_srq_recv = Some(receive::post_srq_recv);
        public.alloc_mw = Some(control::alloc_mw);
        public.bind_mw = Some(control::bind_mw);
        extended::<Word>(ibv, offset_of!(verbs_context, create_qp_ex))
            .write(create::create_qp_ex as Word);
        extended::<Word>(ibv, offset_of!(verbs_context, alloc_parent_domain))
            .write(domain::alloc_parent_domain as Word);
        extended::<Word>(ibv, offset_of!(verbs_context, create_wq))
            .write(create::create_wq as Word);
        if scope == Scope::All {
            extended::<Word>(ibv, offset_of!(verbs_context, create_srq_ex))
                .write(create::create_srq_ex as Word);
        }
    }
}
