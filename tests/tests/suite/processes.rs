//! Other processes, started while receives are posted.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use doorbell::{Buffer, DataPath};
use doorbell_tests::world::Shared;
use doorbell_tests::{message, receiving, records};

/// A program that knows nothing of the device.
fn other_program() -> Command {
    let mut command = Command::new("/bin/true");
    command.env_clear();
    command
}

#[test]
fn programs_are_spawned_while_messages_arrive() {
    const MESSAGES: u64 = 20_000;
    let mut w = Shared::new(63, 2, 512).filled();
    let mut peers = w.peers;
    let sender = thread::spawn(move || {
        for i in 0..MESSAGES {
            peers.send(i as usize % 2, 512);
        }
        peers.settle();
    });
    let mut expected = [0; 2];
    for round in 0..20 {
        receiving::messages(&mut w.receiver, MESSAGES as usize / 20, |message| {
            let (from, number) = message::read(&message);
            assert_eq!(number, expected[from as usize]);
            expected[from as usize] += 1;
        });
        let mut command = other_program();
        if round % 2 == 0 {
            // With a closure to run, std must fork instead of spawning.
            // SAFETY: the closure does nothing.
            unsafe { command.pre_exec(|| Ok(())) };
        }
        assert!(command.status().unwrap().success());
    }
    sender.join().unwrap();
}

#[test]
fn a_forked_child_that_drops_everything_changes_nothing_for_its_parent() {
    let mut w = Shared::new(15, 1, 64).filled();
    w.peers.send(0, 64);
    w.peers.settle();
    let taken = w.pool.take();
    dropped_in_a_child(&mut w, taken);
    receiving::messages(&mut w.receiver, 1, |message| assert_eq!(message::read(&message), (0, 0)));
    w.exchange(100);
}

/// A forgotten batch leaves a lent slot, an index that was not published and doorbells that were not rung. The child
/// must not do that work for its parent, and the doorbell records may not even be mapped in the child.
#[test]
fn a_forked_child_that_drops_a_receiver_with_a_forgotten_batch_changes_nothing_for_its_parent() {
    let mut w = Shared::new(15, 1, 64).filled();
    w.peers.arrive(3);
    let mut batch = w.receiver.poll();
    for number in 0..2 {
        let message = batch.next().expect("it has arrived").unwrap();
        assert_eq!(message::read(&message), (0, number));
    }
    std::mem::forget(batch);
    keep_records_from_children(&w);
    dropped_in_a_child(&mut w, None);
    receiving::messages(&mut w.receiver, 1, |message| assert_eq!(message::read(&message), (0, 2)));
    w.exchange(100);
}

/// Unmaps the doorbell records in children, as `ibv_fork_init(3)` does: a store to them is a fault there.
fn keep_records_from_children(w: &Shared) {
    if w.pd.context().auto_path().0 != DataPath::Direct {
        return;
    }
    for record in records::of(&w.near[0]) {
        let page = (record / 4096 * 4096) as *mut libc::c_void;
        // SAFETY: a page of libmlx5, which does not change in this process.
        assert_eq!(unsafe { libc::madvise(page, 4096, libc::MADV_DONTFORK) }, 0);
    }
}

/// Drops everything in a forked child, which must end well and say nothing.
fn dropped_in_a_child(w: &mut Shared, taken: Option<Buffer>) {
    // SAFETY: the child owns copies of all that it drops, and leaves without dropping them again; the parent goes on
    // with its own.
    let copy = unsafe { std::ptr::read(w) };
    let copy = std::mem::ManuallyDrop::new(copy);
    // SAFETY: the name is a string.
    let complaints = unsafe { libc::memfd_create(c"stderr".as_ptr(), 0) };
    // SAFETY: the child frees memory, for which libc prepares fork, and leaves.
    let child = unsafe { libc::fork() };
    assert!(complaints >= 0 && child >= 0);
    if child == 0 {
        // SAFETY: an open descriptor of this process takes the place of another one.
        unsafe { libc::dup2(complaints, libc::STDERR_FILENO) };
        drop(taken);
        let Shared { receiver, near, peers, pool, pd, .. } = std::mem::ManuallyDrop::into_inner(copy);
        drop((receiver, near, peers, pool, pd));
        // SAFETY: exits without running the exit handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    receiving::wait("the child", || {
        // SAFETY: waits for our own child, with room for its status.
        let waited = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        assert!(waited == 0 || waited == child);
        waited == child
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    // The child did not even try: a device that refuses the child would have been complained about.
    let printed = std::fs::read_to_string(format!("/proc/self/fd/{complaints}")).unwrap();
    assert_eq!(printed, "");
}
