//! Multicast groups: datagrams for all queue pairs that have joined.

use rdma_core_sys as sys;

use super::QueuePair;
use super::address::{MAX_24_BITS, QpAddress};
use super::datagram::AddressHandle;
use super::group::MulticastGroup;
use super::object::Qp;
use crate::error::{Error, Result};
use crate::mtu::Mtu;

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
    /// # use doorbell::{CqConfig, MulticastGroup, QpConfig, QueuePair, Receiver, RqConfig};
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(512))?;
    /// let group = MulticastGroup::ip("239.1.2.3".parse().expect("an address"));
    /// # let group = MulticastGroup { lid: 0xc001, ..group };
    /// let mut qp = QueuePair::builder(&QpConfig::ud(0x1234))
    ///     .receive(&mut receiver, RqConfig::new(512))
    ///     .build()?;
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
        Error::check_range("MulticastGroup::lid (from the subnet manager)", group.lid.into(), 0xc000, 0xfffe)
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
}
