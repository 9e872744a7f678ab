use super::bytes::{get16, get32, get64, gid, put16, put32, put64};
use super::smp::Way;
use super::*;
use crate::base::rng::Rng;
use crate::fabric::address::{self, SWITCH_LID};
use crate::fabric::mad::SIZE;

fn around() -> Surroundings {
    let counters = counters::Port { xmit_packets: 1 << 33, rcv_data: 7, ..Default::default() };
    Surroundings { lid: 2, up: true, peers: vec![1, 300], counters, members: Vec::new(), seconds: 9 }
}

fn request(class: u8, method: u8, attribute: u16, modifier: u32) -> Mad {
    let mut mad = [0; SIZE];
    let class_version = if class == CLASS_SA { 2 } else { 1 };
    let header = Header { class, class_version, method, attribute, modifier, transaction: 5, ..Header::default() };
    header.emit(&mut mad);
    mad
}

fn directed(attribute: u16, modifier: u32, path: &[u8]) -> Mad {
    let mut mad = request(CLASS_SUBNET_DIRECTED, GET, attribute, modifier);
    mad[7] = path.len() as u8;
    put32(&mut mad, 32, u32::MAX);
    mad[129..129 + path.len()].copy_from_slice(path);
    mad
}

#[test]
fn paths_lead_over_the_switch_and_no_further_than_a_device() {
    let way = |path: &[u8]| smp::way(&directed(0x11, 0, path), 0, &around());
    assert_eq!([way(&[]), way(&[1]), way(&[1, 2])], [Way::Here, Way::Switch, Way::Here]);
    assert_eq!([way(&[1, 1]), way(&[1, 9])], [Way::Device(1), Way::Lost]);
    assert_eq!([way(&[2]), way(&[1, 1, 1]), way(&[1; 63])], [Way::Lost; 3]);
    let by_lid = |lid| smp::way(&request(CLASS_SUBNET_LID, GET, 0x11, 0), lid, &around());
    assert_eq!([by_lid(2), by_lid(SWITCH_LID)], [Way::Here, Way::Switch]);
    assert_eq!([by_lid(300), by_lid(7)], [Way::Device(300), Way::Lost]);
    let mut partly = directed(0x11, 0, &[1]);
    put16(&mut partly, 32, 4);
    assert_eq!(smp::way(&partly, 0, &around()), Way::Lost);
}

#[test]
fn nodes_and_ports_say_where_they_are() {
    let answer = smp::port(&directed(0x11, 0, &[1, 2]), &around(), 1).unwrap();
    assert_eq!((answer[3], get16(&answer, 4)), (GET | RESPONSE, 1 << 15));
    assert_eq!((answer[DATA + 2], get64(&answer, DATA + 12)), (1, address::guid(2)));
    assert_eq!(answer[193..196], [1, 1, 0], "back through the switch's port 1");
    let mad = request(CLASS_SUBNET_LID, GET, 0x15, 1);
    let info = smp::port(&mad, &around(), 1).unwrap();
    assert_eq!((get16(&info, DATA + 16), get16(&info, DATA + 18)), (2, SWITCH_LID));
    let state = |port: u32, up: bool| {
        let mad = request(CLASS_SUBNET_LID, GET, 0x15, port);
        smp::switch(&mad, &Surroundings { up, ..around() }).map(|info| info[DATA + 32] & 0xf)
    };
    assert_eq!([state(0, true), state(1, true), state(3, true)], [Some(4), Some(4), Some(1)]);
    assert_eq!([state(2, true), state(2, false)], [Some(4), Some(1)], "the port of this device");
    let table = smp::switch(&request(CLASS_SUBNET_LID, GET, 0x19, 0), &around()).unwrap();
    assert_eq!(table[DATA..DATA + 4], [255, 1, 2, 255]);
    for (method, attribute, status) in [(GET, 0x99, UNSUPPORTED), (SET, 0x15, UNSUPPORTED), (GET, 0x14, OK)] {
        let answer = smp::port(&request(CLASS_SUBNET_LID, method, attribute, 0), &around(), 1);
        assert_eq!(get16(&answer.unwrap(), 4), status);
    }
    let beyond = smp::port(&request(CLASS_SUBNET_LID, GET, 0x15, 2), &around(), 1).unwrap();
    assert_eq!(get16(&beyond, 4), INVALID);
}

#[test]
fn counters_are_told_and_set_to_zero() {
    let ask = |method, attribute, mask| {
        let mut mad = request(CLASS_PERFORMANCE, method, attribute, 0);
        mad[DATA + 1] = 1;
        put16(&mut mad, DATA + 2, mask);
        pma::answer(&mad, &around()).unwrap()
    };
    let (plain, _) = ask(GET, 0x12, 0);
    assert_eq!((get32(&plain, DATA + 32), get32(&plain, DATA + 28)), (u32::MAX, 7));
    let (extended, change) = ask(GET, 0x1d, 0);
    assert_eq!((get64(&extended, DATA + 24), change), (1 << 33, None));
    // Packets sent, but not the data received.
    let (cleared, change) = ask(SET, 0x1d, 1 << 2);
    assert_eq!((get64(&cleared, DATA + 24), get64(&cleared, DATA + 16)), (0, 7));
    let Some(Change::Reset(selected)) = change else { panic!("{change:?}") };
    let (mut base, now) = (counters::Port::default(), around().counters);
    selected.reset(&mut base, &now);
    assert_eq!(now.since(&base), counters::Port { rcv_data: 7, ..Default::default() });
    let mut other = request(CLASS_PERFORMANCE, GET, 0x12, 0);
    other[DATA + 1] = 2;
    assert_eq!(get16(&pma::answer(&other, &around()).unwrap().0, 4), INVALID);
}

fn query(method: u8, attribute: u16, mask: u64, fill: impl Fn(&mut [u8])) -> Mad {
    let mut mad = request(CLASS_SA, method, attribute, 0);
    put64(&mut mad, 48, mask);
    fill(&mut mad[56..]);
    mad
}

// Status, size of a record, and the records.
fn records(answer: &[u8]) -> (u16, usize, usize) {
    let size = usize::from(get16(answer, 44)) * 8;
    let count = (answer.len() - 56).checked_div(size).unwrap_or(0);
    (get16(answer, 4), size, count)
}

#[test]
fn records_come_as_a_table_of_any_length_or_alone() {
    let many = Surroundings { peers: (3..400).collect(), ..around() };
    let (answer, _) = sa::answer(&query(GET_TABLE, 0x11, 0, |_| {}), &many).unwrap();
    assert_eq!(records(&answer), (OK, 112, 399));
    assert_eq!(answer.len(), 56 + 399 * 112);
    let one = |data: &mut [u8]| put16(data, 0, 300);
    let (answer, _) = sa::answer(&query(GET, 0x11, 1, one), &around()).unwrap();
    assert_eq!((answer.len(), get16(&answer, 56)), (SIZE, 300));
    let (answer, _) = sa::answer(&query(GET, 0x11, 0, |_| {}), &around()).unwrap();
    assert_eq!((records(&answer).0, answer.len()), (4 << 8, SIZE));
    let none = |data: &mut [u8]| put16(data, 0, 77);
    assert_eq!(records(&sa::answer(&query(GET, 0x11, 1, none), &around()).unwrap().0).0, 3 << 8);
    let (answer, _) = sa::answer(&query(GET_TABLE, 0x11, 1, none), &around()).unwrap();
    assert_eq!(records(&answer), (OK, 0, 0));
}

#[test]
fn a_path_is_found_by_gid_and_by_lid() {
    let by_gid = |data: &mut [u8]| {
        data[8..24].copy_from_slice(&address::gid(300));
        data[24..40].copy_from_slice(&address::gid(2));
    };
    let (answer, _) = sa::answer(&query(GET, 0x35, 0b1100, by_gid), &around()).unwrap();
    assert_eq!((get16(&answer, 4), get16(&answer, 96), get16(&answer, 98)), (OK, 300, 2));
    let stranger = |data: &mut [u8]| data[8..24].copy_from_slice(&address::gid(8));
    let (answer, _) = sa::answer(&query(GET, 0x35, 0b100, stranger), &around()).unwrap();
    assert_eq!(get16(&answer, 4), 5 << 8);
    let from = |data: &mut [u8]| put16(data, 42, 1);
    let (answer, _) = sa::answer(&query(GET_TABLE, 0x35, 0b10_0000, from), &around()).unwrap();
    assert_eq!(records(&answer), (OK, 64, 4));
}

#[test]
fn members_share_the_queue_key_of_their_group() {
    const JOIN: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 16;
    let mut mgid = [0; 16];
    (mgid[0], mgid[15]) = (0xff, 7);
    let fill = |lid: u16, state: u8| {
        move |data: &mut [u8]| {
            data[..16].copy_from_slice(&mgid);
            data[16..32].copy_from_slice(&address::gid(lid));
            put32(data, 32, 0x1111);
            data[48] = state;
        }
    };
    let mut around = around();
    let (_, change) = sa::answer(&query(SET, 0x38, JOIN, fill(2, 1)), &around).unwrap();
    let expected = Membership { mgid, qkey: 0x1111, join_state: 1 };
    assert_eq!(change, Some(Change::Join(expected)));
    // Another port was there first.
    let first = Membership { qkey: 0x2222, ..expected };
    around.members.push(Member { lid: 1, membership: first });
    let (answer, change) = sa::answer(&query(SET, 0x38, JOIN, fill(2, 1)), &around).unwrap();
    assert_eq!((get32(&answer, 56 + 32), gid(&answer, 56)), (0x2222, mgid));
    assert_eq!(get16(&answer, 56 + 36), address::mlid_of_group(&mgid));
    let Some(Change::Join(membership)) = change else { panic!("{change:?}") };
    around.members.push(Member { lid: 2, membership });
    let (answer, _) = sa::answer(&query(GET_TABLE, 0x38, 0, |_| {}), &around).unwrap();
    assert_eq!(records(&answer), (OK, 56, 1), "a group is shown once");
    let mut trusted = query(GET_TABLE, 0x38, 0, |_| {});
    put64(&mut trusted, 36, 1);
    assert_eq!(records(&sa::answer(&trusted, &around).unwrap().0).2, 2);
    let (_, change) = sa::answer(&query(DELETE, 0x38, JOIN, fill(2, 1)), &around).unwrap();
    assert_eq!(change, Some(Change::Leave(mgid)));
    for (mask, lid, state, status) in [(JOIN, 1, 1, 5 << 8), (1, 2, 1, 6 << 8), (JOIN, 2, 0, 5 << 8)] {
        let (answer, change) = sa::answer(&query(SET, 0x38, mask, fill(lid, state)), &around).unwrap();
        assert_eq!((get16(&answer, 4), change), (status, None));
    }
    // Without a group the port gets one of its own.
    let (answer, change) = sa::answer(&query(SET, 0x38, JOIN & !1, fill(2, 1)), &around).unwrap();
    assert!(answer[56] == 0xff && gid(&answer, 56) != mgid && change.is_some());
}

/// Datagrams of a peer and of a program: random bytes, and random bytes behind a header that an agent knows.
#[test]
fn no_bytes_make_an_agent_panic() {
    let mut rng = Rng::new(46);
    let around = around();
    let classes = [CLASS_SUBNET_LID, CLASS_SUBNET_DIRECTED, CLASS_SA, CLASS_PERFORMANCE, 0x32];
    for round in 0..20_000 {
        let mut mad = [0; SIZE];
        mad.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
        if round % 8 != 0 {
            mad[0] = 1;
            mad[1] = classes[rng.below(5) as usize];
            mad[3] = [GET, SET, GET_TABLE, DELETE, 5][rng.below(5) as usize];
            put16(&mut mad, 16, rng.below(0x40) as u16);
            put32(&mut mad, 20, [rng.below(64), rng.below(1 << 20)][rng.below(2) as usize] as u32);
        }
        smp::depart(&mut mad);
        let _ = smp::way(&mad, rng.below(1 << 16) as u16, &around);
        for answer in [smp::port(&mad, &around, 1), smp::switch(&mad, &around), refuse(&mad)] {
            assert!(answer.is_none_or(|answer| smp::is_response(&answer)));
        }
        let _ = pma::answer(&mad, &around);
        if let Some((answer, _)) = sa::answer(&mad, &around) {
            assert!(answer.len() >= 56);
        }
    }
}
