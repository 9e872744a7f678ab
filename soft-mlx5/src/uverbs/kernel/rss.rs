//! Indirection tables, and queue pairs that spread frames over their WQs by hash (RSS).

use super::Call;
use super::abi::Abi;
use super::abi::mlx5::{self, driver_flag};
use super::abi::uverbs::{ExCreateIndTable, ExCreateIndTableResp, ExDestroyIndTable};
use super::async_event::Reported;
use super::errno::{EINVAL, EOPNOTSUPP};
use super::pd::Pd;
use super::udata::{Request, Udata};
use super::wq::Wq;
use crate::commands::frames::tir_context;
use crate::commands::limits;
use crate::commands::objects::{Entry, Id, Kind};
use crate::objects::rss::{KEY, field};
use crate::objects::{HashAttr, Loopback, Result, TirAttr, Tirn, Wqn};

/// An indirection table.
#[derive(Debug)]
pub struct IndTable {
    wqs: Vec<u32>,
}

/// A queue pair without queues of its own.
#[derive(Debug)]
pub struct RssQp {
    /// Target of flow rules.
    pub tir: Tirn,
}

/// Object type of a table (`UVERBS_OBJECT_RWQ_IND_TBL`).
pub const TABLE_TYPE: u16 = 11;

const TOEPLITZ: u8 = 1;

/// Creates a table.
pub fn write_create_table(call: &mut Call, request: &Request) -> Result<()> {
    let input = &request.core.input;
    let core: ExCreateIndTable = input.get()?;
    if core.comp_mask != 0 {
        return Err(EOPNOTSUPP);
    }
    if core.log_ind_tbl_size > limits::LOG_INDIRECTION {
        return Err(EINVAL);
    }
    if !request.driver.input.is_zero_from(0)? {
        return Err(EOPNOTSUPP);
    }
    let count = 1 << core.log_ind_tbl_size;
    let end = ExCreateIndTable::SIZE + 4 * count;
    let bytes = input.bytes(ExCreateIndTable::SIZE, end)?;
    if bytes.len() != 4 * count {
        return Err(EINVAL);
    }
    if !input.is_zero_from(end.next_multiple_of(8))? {
        return Err(EOPNOTSUPP);
    }
    let wqs: Vec<u32> = bytes.chunks_exact(4).map(u32::get).collect();
    wqs.iter().try_for_each(|wq| call.get::<Wq>(*wq).map(drop)).map_err(|_| EINVAL)?;
    let ind_tbl_handle = call.enter_new(Kind::Rqt, &wqs.clone(), IndTable { wqs })?;
    let Id(_, ind_tbl_num) = call.handles().ids(ind_tbl_handle)[0];
    let answer = ExCreateIndTableResp {
        comp_mask: 0,
        response_length: request.core.output.len.min(ExCreateIndTableResp::SIZE) as u32,
        ind_tbl_handle,
        ind_tbl_num,
    };
    let answered = request.core.output.respond(&answer);
    call.or_destroy(ind_tbl_handle, answered)
}

/// Destroys a table.
pub fn write_destroy_table(call: &mut Call, request: &Request) -> Result<()> {
    let core: ExDestroyIndTable = request.core.input.request()?;
    if core.comp_mask != 0 {
        return Err(EOPNOTSUPP);
    }
    call.destroy(core.ind_tbl_handle, TABLE_TYPE).map(drop)
}

/// Attributes of an RSS queue pair to create.
pub struct WantedRss {
    /// Domain.
    pub pd: u32,
    /// Table.
    pub table: u32,
    /// Flags of the creation, none of which is offered.
    pub flags: u32,
    /// The program asks for a send queue, too.
    pub sends: bool,
}

impl Call<'_> {
    pub(super) fn create_rss_qp(&mut self, wanted: &WantedRss, driver: &Udata) -> Result<u32> {
        self.context()?;
        self.get::<Pd>(wanted.pd)?;
        let wqs = self.get::<IndTable>(wanted.table)?.wqs.clone();
        if wanted.flags != 0 || wanted.sends {
            return Err(EINVAL);
        }
        let (hash, loopback) = hash(driver, wqs.len())?;
        let numbers = wqs.iter().map(|wq| self.get::<Wq>(*wq).map(|wq| wq.wqn));
        let queues = numbers.collect::<Result<Vec<Wqn>>>()?;
        let attr = TirAttr { domain: self.context()?.domain, loopback, hash, queues };
        let [table] = self.handles().ids(wanted.table)[..] else { return Err(EINVAL) };
        let context = tir_context(&attr, table);
        let tir = self.nic().create_tir(attr)?;
        let (id, uid, uses) = (Id(Kind::Tir, tir.0), self.uid(), self.ids(&[wanted.pd, wanted.table]));
        self.core.commands.objects.insert(id, Entry { uid, uses, context, ..Entry::default() });
        let handle = self.handles().insert(vec![id], RssQp { tir });
        let answer = self.answer_parts(&[id]);
        let answered = driver.output.put(&answer);
        self.or_destroy(handle, answered)?;
        Ok(handle)
    }

    pub(super) fn destroy_rss_qp(&mut self, handle: u32) -> Result<Reported> {
        let tir = self.get::<RssQp>(handle)?.tir;
        self.nic().destroy_tir(tir)?;
        Ok(Reported::default())
    }
}

fn hash(driver: &Udata, queues: usize) -> Result<(Option<HashAttr>, Loopback)> {
    // Size up to the key; later fields may be missing.
    const LEAST: usize = 144;
    if driver.input.len() < LEAST {
        return Err(EINVAL);
    }
    let given: mlx5::CreateQpRss = driver.input.get()?;
    let known = driver_flag::LOOPBACK_UNICAST | driver_flag::LOOPBACK_MULTICAST | driver_flag::TUNNEL_OFFLOADS;
    let zero = driver.input.is_zero_from(mlx5::CreateQpRss::SIZE)?;
    let looks_into_tunnels = given.flags & driver_flag::TUNNEL_OFFLOADS != 0;
    if !zero
        || given.comp_mask != 0
        || given.flags & !known != 0
        || given.rx_hash_fields_mask & field::INNER != 0 && !looks_into_tunnels
    {
        return Err(EOPNOTSUPP);
    }
    if given.rx_hash_fields_mask & !field::ALL != 0 || given.rx_hash_function != TOEPLITZ {
        return Err(EOPNOTSUPP);
    }
    if usize::from(given.rx_key_len) != KEY {
        return Err(EINVAL);
    }
    let loopback = Loopback {
        unicast: given.flags & driver_flag::LOOPBACK_UNICAST != 0,
        multicast: given.flags & driver_flag::LOOPBACK_MULTICAST != 0,
    };
    let fields = given.rx_hash_fields_mask;
    if fields == 0 {
        // All frames to one queue.
        return if queues == 1 { Ok((None, loopback)) } else { Err(EINVAL) };
    }
    let both = |one: u64, other: u64| fields & one != 0 && fields & other != 0;
    let ipv4 = field::SRC_IPV4 | field::DST_IPV4;
    let tcp = field::SRC_PORT_TCP | field::DST_PORT_TCP;
    if both(ipv4, field::SRC_IPV6 | field::DST_IPV6) || both(tcp, field::SRC_PORT_UDP | field::DST_PORT_UDP) {
        return Err(EINVAL);
    }
    let mut key = [0; KEY];
    key.copy_from_slice(&given.rx_hash_key.as_flattened()[..KEY]);
    Ok((Some(HashAttr { fields, key }), loopback))
}
