# A device without the offload: the library matches, with wildcards, rendezvous and cancels.
set -e
tag_matching --device rxe0 --messages 500 >/tmp/tag_matching || { cat /tmp/tag_matching; exit 1; }
cat /tmp/tag_matching
grep 'on rxe0 (.*): path verbs, offload: library' /tmp/tag_matching
tail -n 1 /tmp/tag_matching | grep '^demo-tags: ok: .* offload: library, 0 out of order$'
