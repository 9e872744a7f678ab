//! Every ordering of the rings: between this processor and the adapter, and between two threads that have one queue.
//!
//! The other party is most often a PCIe device. It is cache-coherent, reads host memory by DMA, and observes CPU
//! stores in the order in which they become visible in the outer shareable domain. Rust's
//! `atomic::fence` orders accesses for other CPUs. On aarch64 (`dmb ish`) this is not enough for the device, and on
//! x86-64 (`mfence`) it costs too much. So each barrier is the instruction that the architecture asks for, in inline
//! assembly. Without `nomem` an `asm!` block is also a compiler barrier for all memory that the device can reach.
//!
//! rdma-core's `util/udma_barrier.h` makes the same choices but one: on x86-64 it has an `lfence` where
//! [`owner_before_cqe`] has nothing.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("mlx5-ring knows the memory ordering of x86-64 and aarch64 only");

use core::arch::asm;

/// In unit tests, notes what happens, in order: nothing else shows that a barrier stands where it must.
macro_rules! traced {
    ($event:expr) => {
        #[cfg(test)]
        {
            use crate::testing::trace::Event;
            crate::testing::trace::event($event);
        }
    };
}
pub(crate) use traced;

/// Between the stores to WQEs and the store to the doorbell record.
///
/// The device reads the record first and the WQEs it covers afterwards. If the record became visible
/// before a WQE, the device would execute what stood in the slot before.
///
/// - x86-64: stores to write-back memory become visible in program order (Intel SDM vol. 3A, "Memory Ordering in P6
///   and More Recent Processor Families"), so only the compiler must be kept from moving them.
/// - aarch64: `dmb oshst` orders stores before it against stores after it for all observers in the
///   outer shareable domain, which a coherent device belongs to.
#[inline(always)]
pub fn wqe_before_doorbell_record() {
    traced!(Event::RecordFence);
    // SAFETY: no registers, no stack, no memory access: only an ordering.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("", options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Between the load of a CQE's owner bit and the loads of the rest of the CQE (and of the payload).
///
/// The device writes the payload, then the CQE, the owner bit last. A load of the body that was
/// satisfied before the load of the owner bit could return what stood there one lap ago.
///
/// - x86-64: loads are not reordered with older loads (the same); the compiler only.
///   rdma-core pays an `lfence` here; UCX and DPDK do not.
/// - aarch64: `dmb oshld` orders loads before it against loads and stores after it.
#[inline(always)]
pub fn owner_before_cqe() {
    // SAFETY: no registers, no stack, no memory access: only an ordering.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("", options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Between the last load of the CQEs that are given back and the store of the consumer index.
///
/// Once the device sees the index it may overwrite those CQEs.
///
/// - x86-64: a store is not reordered with older loads (the same); the compiler only.
/// - aarch64: `dmb oshld` again, which also orders loads against later stores. The index is published
///   once per batch, so it is paid once per batch.
#[inline(always)]
pub fn cqe_before_consumer_index() {
    owner_before_cqe();
}

/// Between stores of software's to CQEs and the store of the consumer index that gives them back.
///
/// The device may write those CQEs as soon as it sees the index; a store of software's that became visible
/// later would destroy what it wrote.
///
/// - x86-64: a store is not reordered with older stores (the same); the compiler only.
/// - aarch64: `dmb oshst` orders stores before it against stores after it.
#[inline(always)]
pub fn cqe_stores_before_consumer_index() {
    wqe_before_doorbell_record();
}

/// Between the store to a doorbell record and the store to a UAR register.
///
/// The register starts the device, which then reads the record and the WQEs.
///
/// It is also between the stores to a WQE and those that copy it to the register (BlueFlame): the device must not see
/// a copy that is newer than what it then reads.
///
/// - x86-64: the register is mapped write-combining, and stores to such memory are weakly ordered
///   against others: `sfence` (SDM vol. 2B, SFENCE).
/// - aarch64: `dsb st` completes all stores before it; a register is Device or Normal-NC memory, against
///   which `dmb` to the outer shareable domain gives no guarantee on all systems.
#[inline(always)]
pub fn doorbell_record_before_uar() {
    traced!(Event::RegisterFence);
    // SAFETY: no registers, no stack, no memory access: only an ordering.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("sfence", options(nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// After the stores to a UAR register: pushes them out of the write-combining buffer, and keeps the next
/// write to the register from merging with them. The same instructions as
/// [`doorbell_record_before_uar`], for the same kinds of memory.
///
/// The stores of one BlueFlame copy have no order among each other; libmlx5, the kernel and UCX do not order them
/// either.
#[inline(always)]
pub fn flush_uar() {
    doorbell_record_before_uar();
}
