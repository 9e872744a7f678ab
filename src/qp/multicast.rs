//! Multicast groups: datagrams for all queue pairs that have joined.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_core_sys as sys;

use super::QueuePair;
use super::address::{MAX_24_BITS, QpAddress};
use super::datagram::AddressHandle;
use super::mtu::Mtu;
use super::object::Qp;
use crate::error::{Error, Result};

/// A multicast group, for [`QueuePair::join`] and [`QueuePair::multicast_handle`].
///
/// ```
/// use doorbell::MulticastGroup;
///
/// // RoCE v2: an IP address, here for a queue pair with an IPv6 GID.
/// let group = MulticastGroup::ip("ff0e::1:2".parse()?);
/// assert_eq!((group.gid[0], group.lid), (0xff, 0));
/// // InfiniBand: the group as the subnet manager knows it, with its LID.
/// let group = MulticastGroup { gid: group.gid, lid: 0xc001 };
/// # let _ = group;
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastGroup {
    /// GID of the group, in network byte order.
    pub gid: [u8; 16],
    /// Multicast LID, from 0xc000 to 0xfffe on InfiniBand; 0 on Ethernet.
    pub lid: u16,
}

impl MulticastGroup {
    /// Names the group of an IP multicast address on Ethernet (RoCE v2). The address must be of the family of the
    /// queue pair's GID ([`QpConfig::gid_index`](crate::QpConfig::gid_index)), which selects IPv4 or IPv6.
    pub const fn ip(address: IpAddr) -> Self {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { gid: address.octets(), lid: 0 }
    }

    /// Refuses what no adapter takes for a group.
    fn check(&self, operation: &'static str) -> Result<()> {
        let v4 = Ipv6Addr::from(self.gid).to_ipv4_mapped();
        if self.gid[0] == 0xff || v4.is_some_and(|address: Ipv4Addr| address.is_multicast()) {
            return Ok(());
        }
        Err(Error::NotMulticast { operation, gid: self.gid })
    }

    const fn raw(&self) -> sys::ibv_gid {
        sys::ibv_gid { raw: self.gid }
    }
}

impl QueuePair {
    /// Joins a group (`ibv_attach_mcast(3)`): the adapter gives each member a copy of a datagram. Senders must use
    /// the queue key of this queue pair. [`leave`](Self::leave) or the end of the queue pair ends the membership.
    ///
    /// The call configures the adapter only. The network learns of the membership from the subnet manager
    /// (InfiniBand) or by IGMP or MLD (Ethernet); on Ethernet, a UDP socket that joins the group on the same
    /// interface is enough.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # use doorbell::{MulticastGroup, QpConfig, Receiver, ReceiverConfig};
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// let group = MulticastGroup::ip("239.1.2.3".parse().expect("an address"));
    /// # let group = MulticastGroup { lid: 0xc001, ..group };
    /// let mut qp = receiver.create_qp(&QpConfig::ud(0x1234).receives(512, 1))?;
    /// qp.activate()?;
    /// qp.join(&group)?;
    /// // Until here; or until the queue pair ends.
    /// qp.leave(&group)?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a connected transport; [`Error::NotMulticast`] if the address is not multicast;
    /// [`Error::OutOfRange`] on InfiniBand if the LID is not multicast; [`Error::AlreadyMember`]; [`Error::Verbs`],
    /// with `ENOMEM` if the adapter is full (`max_mcast_qp_attach` of [`Context::attr`](crate::Context::attr)).
    pub fn join(&mut self, group: &MulticastGroup) -> Result<()> {
        self.check_multicast("join")?;
        group.check("join")?;
        self.check_lid(group)?;
        self.qp.join(group)
    }

    /// Leaves a group (`ibv_detach_mcast(3)`). Datagrams that have arrived can still be polled.
    ///
    /// # Errors
    /// [`Error::NotMember`] if the queue pair is not a member; [`Error::Verbs`].
    pub fn leave(&mut self, group: &MulticastGroup) -> Result<()> {
        self.qp.leave(group)
    }

    /// Creates the handle to send to a group, with the queue key of its members. The sender need not be a member.
    ///
    /// ```
    /// # let mut world = doorbell_doc::World::datagrams();
    /// # let (sender, qp) = (&mut world.sender, &world.qp);
    /// # let queue = qp.send_queue().expect("a sender");
    /// use doorbell::MulticastGroup;
    ///
    /// let group = MulticastGroup::ip("239.1.2.3".parse()?);
    /// # let group = MulticastGroup { lid: 0xc001, ..group };
    /// let to = qp.multicast_handle(&group, 0x1234)?;
    /// sender.post(queue)?.send_to(&to, b"hello, everybody", None)?;
    /// # doorbell_doc::finish(sender, queue);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a connected transport; [`Error::NotMulticast`] if the address is not multicast;
    /// [`Error::OutOfRange`] on InfiniBand if the LID is not multicast, and for a queue key with the upper bit set;
    /// [`Error::Verbs`].
    pub fn multicast_handle(&self, group: &MulticastGroup, qkey: u32) -> Result<AddressHandle> {
        self.check_multicast("multicast_handle")?;
        group.check("multicast_handle")?;
        self.check_lid(group)?;
        // The number that stands for all members.
        let (MulticastGroup { gid, lid }, qpn) = (*group, MAX_24_BITS);
        self.address_handle(&QpAddress { lid, gid, qpn, psn: 0, mtu: Mtu::Mtu256 }, qkey)
    }

    /// Refuses a LID with which no packet to the group would go out on InfiniBand; Ethernet has none.
    fn check_lid(&self, group: &MulticastGroup) -> Result<()> {
        if self.local()?.is_ethernet() {
            return Ok(());
        }
        Error::check_range(
            "MulticastGroup::lid (from the subnet manager)",
            group.lid.into(),
            0xc000,
            0xfffe,
        )
    }

    fn check_multicast(&self, operation: &'static str) -> Result<()> {
        if self.is_datagram() {
            return Ok(());
        }
        Err(Error::Unsupported { operation, when: "on a connected transport: use QpConfig::ud" })
    }
}

impl Qp {
    fn join(&self, group: &MulticastGroup) -> Result<()> {
        let mut groups = self.groups();
        if groups.contains(group) {
            return Err(Error::AlreadyMember { qp_num: self.qp_num(), gid: group.gid });
        }
        // SAFETY: a live queue pair and a GID.
        let errno = unsafe { sys::ibv_attach_mcast(self.as_raw(), &group.raw(), group.lid) };
        if errno != 0 {
            return Err(Error::returned("ibv_attach_mcast", self.pd().context().name(), errno));
        }
        groups.push(*group);
        Ok(())
    }

    fn leave(&self, group: &MulticastGroup) -> Result<()> {
        let mut groups = self.groups();
        let at = groups.iter().position(|joined| joined == group);
        let at = at.ok_or(Error::NotMember { qp_num: self.qp_num(), gid: group.gid })?;
        let errno = self.detach(group);
        if errno != 0 {
            return Err(Error::returned("ibv_detach_mcast", self.pd().context().name(), errno));
        }
        groups.remove(at);
        Ok(())
    }

    /// Ends one membership; returns `errno`.
    fn detach(&self, group: &MulticastGroup) -> i32 {
        // SAFETY: a live queue pair and a GID.
        unsafe { sys::ibv_detach_mcast(self.as_raw(), &group.raw(), group.lid) }
    }

    /// Ends all memberships, because a member cannot be destroyed. If a membership does not end, the destroy function
    /// fails and says so.
    pub(super) fn leave_all(&self) {
        self.groups().retain(|group| self.detach(group) != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_differ_from_other_addresses() {
        let group = |address: &str| MulticastGroup::ip(address.parse().unwrap());
        assert_eq!(group("239.1.2.3").gid[10..], [0xff, 0xff, 239, 1, 2, 3]);
        for address in ["239.1.2.3", "224.0.0.1", "ff02::1", "ff0e::1:2"] {
            assert!(group(address).check("join").is_ok(), "{address}");
        }
        for address in ["192.0.2.1", "255.255.255.255", "2001:db8::1", "::ffef:102"] {
            let refused = group(address).check("join").unwrap_err();
            assert!(matches!(refused, Error::NotMulticast { .. }), "{refused}");
            assert!(
                refused.to_string().starts_with(&format!("join: {address} is no")),
                "{refused}"
            );
        }
    }
}
