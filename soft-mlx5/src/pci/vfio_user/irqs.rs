//! MSI-X vectors: an eventfd of the client for each.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use super::message::{EINVAL, Errno, IrqAction};

/// Vectors of the function.
pub const VECTORS: u32 = 16;
/// Index of MSI-X among the kinds of interrupts.
pub const MSIX: u32 = 2;
/// Kinds of interrupts that a PCI device has: INTx, MSI, MSI-X, error, request.
pub const KINDS: u32 = 5;

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<File>,
    // Raised while there was no eventfd, which is what a pending bit says.
    pending: bool,
}

/// The vectors.
#[derive(Debug)]
pub struct Irqs {
    vectors: [Vector; VECTORS as usize],
}

impl Irqs {
    /// Makes vectors without eventfds.
    pub fn new() -> Self {
        Self { vectors: Default::default() }
    }

    /// Raises a vector. Numbers beyond the last raise nothing.
    pub fn raise(&mut self, vector: u32) {
        let Some(vector) = self.vectors.get_mut(vector as usize) else { return };
        match &mut vector.eventfd {
            // The counter of an eventfd that nobody reads may be full: the interrupt is there then.
            Some(eventfd) => drop(eventfd.write(&1u64.to_ne_bytes())),
            None => vector.pending = true,
        }
    }

    /// Executes SET_IRQS.
    pub fn set(
        &mut self,
        action: IrqAction,
        index: u32,
        start: u32,
        count: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let vectors = match index {
            MSIX => &mut self.vectors[..],
            _ if index < KINDS => &mut [],
            _ => return Err(EINVAL),
        };
        if action == IrqAction::Trigger && count == 0 {
            vectors.iter_mut().for_each(|vector| *vector = Vector::default());
            return Ok(());
        }
        let end = start.checked_add(count).filter(|end| *end as usize <= vectors.len());
        let chosen = start as usize..end.ok_or(EINVAL)? as usize;
        if action == IrqAction::Trigger {
            chosen.for_each(|vector| self.raise(vector as u32));
            return Ok(());
        }
        // Vectors without a descriptor have no handler.
        let mut fds = fds.into_iter();
        for vector in chosen {
            let fd = fds.next();
            self.vectors[vector].eventfd = fd.map(File::from);
            if self.vectors[vector].eventfd.is_some() && self.vectors[vector].pending {
                self.vectors[vector].pending = false;
                self.raise(vector as u32);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::FromRawFd;

    use super::*;

    fn eventfd() -> File {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just made and has no other owner.
        unsafe { File::from_raw_fd(fd) }
    }

    fn count(mut eventfd: &File) -> u64 {
        let mut bytes = [0; 8];
        eventfd.read(&mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    fn install(irqs: &mut Irqs, vector: u32, fd: &File) {
        let fds = vec![fd.try_clone().unwrap().into()];
        irqs.set(IrqAction::SetEventfds, MSIX, vector, 1, fds).unwrap();
    }

    #[test]
    fn the_newest_eventfd_of_a_vector_is_signalled() {
        let (mut irqs, old, new) = (Irqs::new(), eventfd(), eventfd());
        install(&mut irqs, 3, &old);
        irqs.raise(3);
        install(&mut irqs, 3, &new);
        irqs.raise(3);
        irqs.raise(3);
        assert_eq!((count(&old), count(&new)), (1, 2));
    }

    #[test]
    fn an_interrupt_before_its_eventfd_is_pending() {
        let (mut irqs, fd) = (Irqs::new(), eventfd());
        // As QEMU does at the start: all vectors, and no handler yet.
        irqs.set(IrqAction::SetEventfds, MSIX, 0, 4, Vec::new()).unwrap();
        irqs.raise(2);
        irqs.raise(2);
        assert_eq!(count(&fd), 0);
        install(&mut irqs, 2, &fd);
        assert_eq!(count(&fd), 1);
        install(&mut irqs, 2, &fd);
        assert_eq!(count(&fd), 0, "raised once");
    }

    #[test]
    fn fewer_descriptors_than_vectors() {
        let (mut irqs, first, second) = (Irqs::new(), eventfd(), eventfd());
        install(&mut irqs, 1, &second);
        let fds = vec![first.try_clone().unwrap().into()];
        irqs.set(IrqAction::SetEventfds, MSIX, 0, 2, fds).unwrap();
        irqs.set(IrqAction::Trigger, MSIX, 0, 2, Vec::new()).unwrap();
        assert_eq!((count(&first), count(&second)), (1, 0));
    }

    #[test]
    fn a_trigger_without_vectors_disables_all() {
        let (mut irqs, fd) = (Irqs::new(), eventfd());
        install(&mut irqs, 15, &fd);
        irqs.set(IrqAction::Trigger, MSIX, 0, 0, Vec::new()).unwrap();
        irqs.raise(15);
        assert_eq!(count(&fd), 0);
    }

    #[test]
    fn vectors_that_do_not_exist() {
        let mut irqs = Irqs::new();
        irqs.raise(VECTORS);
        let mut set = |index, start, count| irqs.set(IrqAction::SetEventfds, index, start, count, Vec::new());
        assert_eq!(set(MSIX, 15, 1), Ok(()));
        assert_eq!(set(MSIX, 15, 2), Err(EINVAL));
        assert_eq!(set(MSIX, u32::MAX, 2), Err(EINVAL));
        assert_eq!(set(3, 0, 1), Err(EINVAL));
        assert_eq!(set(KINDS, 0, 0), Err(EINVAL));
        // Disabling what there is none of.
        assert_eq!(irqs.set(IrqAction::Trigger, 0, 0, 0, Vec::new()), Ok(()));
    }
}
