//! Methods of the ioctl form. Any other method gets `EPROTONOSUPPORT`: the libraries then fall back to
//! the write form or report that the device lacks the function.

use super::attrs::{Attrs, Carries, DRIVER, Spec};
use super::devx::{events, object, umem};
use super::{Call, context, cq, devx, dm, dmabuf, info, mr, mw, pd, port, qp, qp_create, srq, uar_object, wq, write};
use crate::objects::Result;

/// One method of one object type.
pub struct Method {
    /// Object type.
    pub object: u16,
    /// Number of the method.
    pub method: u16,
    /// Attributes that it knows.
    pub attrs: &'static [&'static [Spec]],
    /// Function that runs it.
    pub run: fn(&mut Call, &Attrs) -> Result<()>,
}

const DEVICE: u16 = 0;
const PD: u16 = 1;
const CQ: u16 = 3;
const QP: u16 = 4;
const SRQ: u16 = 5;
const AH: u16 = 6;
const MR: u16 = 7;
const MW: u16 = mw::TYPE;
const WQ: u16 = wq::TYPE_ID;
const DM: u16 = dm::TYPE;
const ASYNC_EVENT: u16 = 16;

// Object types and method numbers of the driver.
const DEVX: u16 = 0x1000;
const ANSWER_FILE: u16 = 0x1004;
const EVENT_FILE: u16 = 0x1005;
const DRIVER_FIRST: u16 = 0x1000;

const ONE_HANDLE: &[Spec] = &[Spec::needs(0, Carries::Handle)];

fn destroy<const TYPE: u16>(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.destroy(attrs.handle(0)?, TYPE).map(drop)
}

macro_rules! methods {
    ($($object:ident $method:literal ($($attrs:expr),*) => $run:expr;)*) => {
        &[$(Method { object: $object, method: $method, attrs: &[$($attrs),*], run: $run },)*]
    };
}

const CORE: &[Method] = methods! {
    DEVICE 0 (write::INVOKE_WRITE, &DRIVER) => write::invoke;
    DEVICE 1 (info::SPECS) => info::run;
    DEVICE 2 (port::QUERY) => port::query;
    DEVICE 3 (context::GET, &DRIVER) => context::get;
    DEVICE 4 (context::QUERY) => context::query;
    DEVICE 5 (port::GID_TABLE) => port::gid_table;
    DEVICE 6 (port::GID_ENTRY) => port::gid_entry;
    CQ 0 (cq::CREATE, &DRIVER) => cq::create;
    QP 0 (qp_create::CREATE, &DRIVER) => qp_create::create;
    SRQ 0 (srq::CREATE, &DRIVER) => srq::create;
    MR 0 (dm::REGISTER) => dm::register;
    MR 2 (mr::ADVISE) => mr::advise;
    MR 3 (mr::QUERY) => mr::query;
    MR 4 (dmabuf::REGISTER) => dmabuf::register;
    WQ 0 (wq::CREATE, &DRIVER) => wq::create;
    DM 0 (dm::ALLOC) => dm::alloc;
    ASYNC_EVENT 0 (context::ASYNC_FILE) => context::async_file;
};

const DESTROY: &[Method] = methods! {
    PD 0 (ONE_HANDLE) => destroy::<PD>;
    CQ 1 (cq::DESTROY) => cq::destroy;
    QP 1 (qp::DESTROY) => qp::destroy;
    SRQ 1 (srq::DESTROY) => srq::destroy;
    AH 0 (ONE_HANDLE) => destroy::<AH>;
    MR 1 (ONE_HANDLE) => destroy::<MR>;
    MW 0 (ONE_HANDLE) => destroy::<MW>;
    WQ 1 (wq::DESTROY) => wq::destroy;
    DM 1 (ONE_HANDLE) => destroy::<DM>;
};

const MLX5: &[Method] = &[
    Method { object: DEVICE, method: DRIVER_FIRST, attrs: &[port::QUERY_MLX5], run: port::query_mlx5 },
    Method {
        object: DEVICE,
        method: DRIVER_FIRST + 1,
        attrs: &[dmabuf::DATA_DIRECT_PATH],
        run: dmabuf::data_direct_path,
    },
    Method { object: DM, method: DRIVER_FIRST, attrs: &[dm::MAP_OPERATION], run: dm::map_operation },
    Method { object: DM, method: DRIVER_FIRST + 1, attrs: &[dm::QUERY], run: dm::query },
    Method { object: uar_object::TYPE, method: DRIVER_FIRST, attrs: &[uar_object::ALLOC], run: uar_object::alloc },
    Method {
        object: uar_object::TYPE,
        method: DRIVER_FIRST + 1,
        attrs: &[uar_object::DESTROY],
        run: uar_object::destroy,
    },
    Method { object: DEVX, method: DRIVER_FIRST, attrs: &[devx::OTHER], run: devx::other },
    Method { object: DEVX, method: DRIVER_FIRST + 1, attrs: &[devx::QUERY_NUMBER], run: devx::query_uar },
    Method { object: DEVX, method: DRIVER_FIRST + 2, attrs: &[devx::QUERY_NUMBER], run: devx::query_eqn },
    Method { object: DEVX, method: DRIVER_FIRST + 3, attrs: &[events::SUBSCRIBE], run: events::subscribe },
    Method { object: object::TYPE, method: DRIVER_FIRST, attrs: &[object::CREATE], run: object::create },
    Method { object: object::TYPE, method: DRIVER_FIRST + 1, attrs: &[object::DESTROY], run: object::destroy },
    Method { object: object::TYPE, method: DRIVER_FIRST + 2, attrs: &[object::COMMAND_ON], run: object::modify },
    Method { object: object::TYPE, method: DRIVER_FIRST + 3, attrs: &[object::COMMAND_ON], run: object::query },
    Method { object: object::TYPE, method: DRIVER_FIRST + 4, attrs: &[object::ASYNC_QUERY], run: object::query_async },
    Method { object: umem::TYPE, method: DRIVER_FIRST, attrs: &[umem::REGISTER], run: umem::register },
    Method { object: umem::TYPE, method: DRIVER_FIRST + 1, attrs: &[umem::DEREGISTER], run: umem::deregister },
    Method { object: ANSWER_FILE, method: DRIVER_FIRST, attrs: &[events::ANSWER_FILE], run: events::answer_file },
    Method { object: EVENT_FILE, method: DRIVER_FIRST, attrs: &[events::EVENT_FILE], run: events::event_file },
    Method { object: PD, method: DRIVER_FIRST, attrs: &[pd::query::SPECS], run: pd::query::run },
];

/// Returns the method with these numbers.
pub fn find(object: u16, method: u16) -> Option<&'static Method> {
    let mut all = CORE.iter().chain(DESTROY).chain(MLX5);
    all.find(|candidate| (candidate.object, candidate.method) == (object, method))
}

/// Returns `true` if the method may succeed after the device was removed: it destroys an object, or its command may.
/// Methods of the driver do not (`uverbs_disassociate_api`).
pub fn outlive_removal(object: u16, method: u16) -> bool {
    (object, method) == (DEVICE, 0) || DESTROY.iter().any(|known| (known.object, known.method) == (object, method))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_method_and_no_attribute_is_listed_twice() {
        let mut seen = HashSet::new();
        for method in CORE.iter().chain(DESTROY).chain(MLX5) {
            assert!(seen.insert((method.object, method.method)));
            let mut ids = HashSet::new();
            assert!(method.attrs.iter().copied().flatten().all(|spec| ids.insert(spec.id)));
        }
        assert!(find(DEVICE, 3).is_some());
        assert!(find(DEVICE, 77).is_none());
    }
}
