//! Management datagrams that arrive at the port, by the agent that they are for.

use super::Core;
use crate::fabric::mad::{CLASS_CM, GSI_QPN};

impl Core {
    /// Hands arrived datagrams to their agents; returns `true` if there were any.
    pub(super) fn take_management(&mut self) -> bool {
        let mut any = false;
        while let Some(arrived) = self.nic.next_management() {
            any = true;
            // The second byte is the class.
            match (arrived.qpn, arrived.mad[1]) {
                (GSI_QPN, CLASS_CM) => self.receive_cm(&arrived),
                _ => self.receive_umad(&arrived),
            }
        }
        any
    }
}
