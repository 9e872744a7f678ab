//! Memory that is registered on demand (ODP).

use doorbell::Context;
use doorbell::raw::rdma_core_sys as sys;

use super::{Level, Patient};

/// Adds whether the device takes page faults, and the consequence for receives.
pub fn examine(patient: &mut Patient, context: &Context) {
    let mut attr = sys::ibv_device_attr_ex::default();
    // SAFETY: an open device and a writable structure.
    let errno = unsafe { sys::ibv_query_device_ex(context.as_raw(), std::ptr::null(), &mut attr) };
    let text = match errno {
        0 => text(&attr.odp_caps),
        _ => format!("not known: {}", std::io::Error::from_raw_os_error(errno)),
    };
    patient.add(Level::Note, "ODP", text);
}

fn text(caps: &sys::ibv_odp_caps) -> String {
    if caps.general_caps & u64::from(sys::IBV_ODP_SUPPORT) == 0 {
        return "the device takes no page faults: IBV_ACCESS_ON_DEMAND fails, and all registered memory is pinned"
            .into();
    }
    let rc = caps.per_transport_caps.rc_odp_caps;
    let on = |bit, name| (rc & bit != 0).then_some(name);
    let on_rc = [
        on(sys::IBV_ODP_SUPPORT_SEND, "sends"),
        on(sys::IBV_ODP_SUPPORT_RECV, "receives"),
        on(sys::IBV_ODP_SUPPORT_SRQ_RECV, "receives of SRQs"),
        on(sys::IBV_ODP_SUPPORT_WRITE, "WRITE"),
        on(sys::IBV_ODP_SUPPORT_READ, "READ"),
        on(sys::IBV_ODP_SUPPORT_ATOMIC, "atomics"),
    ];
    let on_rc: Vec<&str> = on_rc.into_iter().flatten().collect();
    format!(
        "the device takes page faults, on RC for: {}. doorbell pins its pools; other memory that a receive finds missing completes \
         with syndrome 22, vendor syndrome 93, and its message comes again later",
        if on_rc.is_empty() { "nothing".into() } else { on_rc.join(", ") }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_takes_page_faults_for_is_named() {
        let mut caps = sys::ibv_device_attr_ex::default().odp_caps;
        assert!(text(&caps).starts_with("the device takes no page faults"));
        caps.general_caps = sys::IBV_ODP_SUPPORT.into();
        assert!(text(&caps).contains("on RC for: nothing."), "{}", text(&caps));
        caps.per_transport_caps.rc_odp_caps = sys::IBV_ODP_SUPPORT_SEND | sys::IBV_ODP_SUPPORT_READ;
        assert!(text(&caps).contains("on RC for: sends, READ."), "{}", text(&caps));
    }
}
