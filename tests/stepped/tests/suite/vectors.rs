//! The completion vector that a receiver asks for is the one its CQ has.

use doorbell::{Compression, CqConfig, DataPath, Error, Receiver, Timestamps};
use doorbell_stepped_tests::open;
use soft_mlx5::Device;

#[test]
fn the_cq_of_a_receiver_has_the_completion_vector_that_was_asked_for() {
    let (device, pd) = open(Device::builder().stepped());
    let vectors = pd.context().num_comp_vectors();
    assert!(vectors > 0);
    let forms = [
        CqConfig::new(4096).path(DataPath::Direct),
        CqConfig::new(4096).path(DataPath::Verbs),
        CqConfig::new(4096).timestamps(Timestamps::Ticks),
        CqConfig::new(4096).path(DataPath::Direct).compression(Compression::Hash),
    ];
    for config in forms {
        for vector in 0..vectors {
            let _receiver = Receiver::new(&pd, &config.clone().comp_vector(vector)).unwrap();
            let cqs = device.queues().cqs;
            assert_eq!(cqs.len(), 1, "{config:?}");
            assert_eq!(cqs[0].attr.comp_vector, vector, "{config:?}");
        }
        let refused = Receiver::new(&pd, &config.comp_vector(vectors)).unwrap_err();
        assert!(
            matches!(refused, Error::OutOfRange { what: "comp_vector", max, .. }
                if max == u64::from(vectors) - 1),
            "{refused}"
        );
    }
}
