//! Management datagrams that arrive at the port, by the agent that they are for.

use super::Core;

impl Core {
    /// Hands arrived datagrams to their agents; returns `true` if there were any.
    pub(super) fn take_management(&mut self) -> bool {
        let mut any = false;
        while let Some(arrived) = self.nic.next_management() {
            any = true;
            self.receive_umad(&arrived);
        }
        any
    }
}
