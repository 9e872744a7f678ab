//! Agents: which datagrams a program gets.

use crate::fabric::mad::{Mad, SMI_QPN};
use crate::objects::Result;
use crate::uverbs::kernel::errno::{EINVAL, EPROTONOSUPPORT};
use crate::uverbs::kernel::user;

/// Bytes of both forms of a registration.
const FIRST: usize = 28;
const SECOND: usize = 40;

/// Classes of vendors whose datagrams name the vendor.
const VENDOR_CLASSES: std::ops::RangeInclusive<u8> = 0x30..=0x4f;
/// Where they do.
const OUI: usize = 37;

/// A registration that a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    qpn: u32,
    class: u8,
    version: u8,
    oui: [u8; 3],
    methods: u128,
    rmpp: u8,
}

/// A registered agent.
#[derive(Debug, Clone, Copy)]
pub struct Agent {
    /// Its registration.
    pub wanted: Registration,
    /// Upper half of the transactions that it starts.
    pub transaction: u32,
}

impl Registration {
    /// Reads the argument of the ioctl, in the second form or in the first.
    pub fn read(argument: u64, second: bool) -> Result<Self> {
        let mut bytes = [0; SECOND];
        let len = if second { SECOND } else { FIRST };
        user::read(argument, &mut bytes[..len])?;
        Ok(if second { Self::second(&bytes)? } else { Self::first(&bytes) })
    }

    // Number, methods, QP, class, version, OUI, version of RMPP.
    fn first(bytes: &[u8; SECOND]) -> Self {
        let mut methods = [0; 16];
        methods.copy_from_slice(&bytes[4..20]);
        Self {
            qpn: bytes[20].into(),
            class: bytes[21],
            version: bytes[22],
            oui: [bytes[23], bytes[24], bytes[25]],
            methods: u128::from_ne_bytes(methods),
            rmpp: bytes[26],
        }
    }

    // Number, QP, class, version, nothing, flags, methods, OUI, version of RMPP.
    fn second(bytes: &[u8; SECOND]) -> Result<Self> {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut methods = [0; 16];
        methods.copy_from_slice(&bytes[16..32]);
        let [zero, oui @ ..] = word(32).to_be_bytes();
        // The only flag lets a program do transfers of several segments by itself.
        if word(12) != 0 || zero != 0 {
            return Err(EINVAL);
        }
        Ok(Self {
            qpn: word(4),
            class: bytes[8],
            version: bytes[9],
            oui,
            methods: u128::from_ne_bytes(methods),
            rmpp: bytes[36],
        })
    }

    /// Checks what the kernel checks; `roce` says that the port has no queue pair 0.
    pub fn check(&self, roce: bool) -> Result<()> {
        let needs_oui = VENDOR_CLASSES.contains(&self.class) && self.methods != 0;
        if self.qpn > 1 || self.rmpp > 1 || needs_oui && self.oui == [0; 3] {
            return Err(EINVAL);
        }
        let subnet = matches!(self.class, 0x01 | 0x81);
        if self.methods != 0 && subnet != (self.qpn == SMI_QPN) {
            return Err(EINVAL);
        }
        if self.qpn == SMI_QPN && roce { Err(EPROTONOSUPPORT) } else { Ok(()) }
    }

    /// Returns the queue pair of its datagrams.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns `true` if both would get the same requests.
    pub fn overlaps(&self, other: &Self) -> bool {
        let key = |one: &Self| (one.qpn, one.class, one.version);
        let vendor = VENDOR_CLASSES.contains(&self.class);
        key(self) == key(other) && self.methods & other.methods != 0 && (!vendor || self.oui == other.oui)
    }

    /// Returns `true` if it takes a request that arrived at queue pair `qpn`.
    pub fn takes(&self, qpn: u32, mad: &Mad) -> bool {
        let [_, class, version, method] = *mad.first_chunk().expect("a datagram is longer");
        let vendor = VENDOR_CLASSES.contains(&class);
        (self.qpn, self.class, self.version) == (qpn, class, version)
            && self.methods >> (method & 0x7f) & 1 == 1
            && (!vendor || mad[OUI..OUI + 3] == self.oui)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(methods: u128) -> Registration {
        Registration { qpn: 1, class: 0x32, version: 1, oui: [0, 0x14, 5], methods, rmpp: 0 }
    }

    #[test]
    fn both_forms_of_a_registration_are_read_alike() {
        let mut first = [0; SECOND];
        first[4] = 6;
        first[20..27].copy_from_slice(&[1, 0x32, 1, 0, 0x14, 5, 0]);
        let mut second = [0; SECOND];
        second[4..10].copy_from_slice(&[1, 0, 0, 0, 0x32, 1]);
        second[16] = 6;
        second[32..36].copy_from_slice(&0x1405u32.to_ne_bytes());
        assert_eq!(Registration::first(&first), ping(6));
        assert_eq!(Registration::second(&second), Ok(ping(6)));
        second[12] = 1;
        assert_eq!(Registration::second(&second), Err(EINVAL));
    }

    #[test]
    fn an_agent_takes_its_methods_of_its_class_and_vendor() {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 0x32, 1, 1]);
        mad[OUI..OUI + 3].copy_from_slice(&[0, 0x14, 5]);
        assert!(ping(2).takes(1, &mad) && !ping(2).takes(0, &mad) && !ping(4).takes(1, &mad));
        mad[OUI] = 9;
        assert!(!ping(2).takes(1, &mad));
        assert!(ping(6).overlaps(&ping(2)) && !ping(4).overlaps(&ping(2)));
        assert!(!ping(6).overlaps(&Registration { oui: [0, 0, 1], ..ping(6) }));
    }

    #[test]
    fn registrations_that_the_kernel_refuses() {
        let good = ping(2);
        assert_eq!(good.check(true), Ok(()));
        for bad in [
            Registration { qpn: 2, ..good },
            Registration { rmpp: 2, ..good },
            Registration { oui: [0; 3], ..good },
            Registration { class: 0x81, ..good },
            Registration { qpn: 0, ..good },
        ] {
            assert_eq!(bad.check(false), Err(EINVAL), "{bad:?}");
        }
        let smi = Registration { qpn: 0, class: 0x81, methods: 0, ..good };
        assert_eq!((smi.check(false), smi.check(true)), (Ok(()), Err(EPROTONOSUPPORT)));
    }
}
