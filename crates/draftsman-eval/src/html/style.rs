//! The page's look: one column, system fonts, colours for light and dark.

pub(super) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fdfdfb;--soft:#566170;--line:#d5dae0;--card:#f3f5f7;\
--c0:#2f6fb3;--c1:#c2571a;--c2:#2a8052;--c3:#8a4fb0;--c4:#937500;\
--s1:#cfe3f7;--s2:#c6ecd6;--s3:#fbe3b8;--s4:#f6cfc4;--s5:#e3d3f3;--s6:#cdeff0;--s7:#e8e4c4;--no:#b3261e}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--paper:#12161c;--soft:#9aa5b3;--line:#333c48;--card:#1a2029;\
--c0:#6fa8e6;--c1:#f0945a;--c2:#66c792;--c3:#c394e6;--c4:#d9bd4a;\
--s1:#1d3d5e;--s2:#1c4a33;--s3:#54421a;--s4:#573026;--s5:#41305a;--s6:#1d494b;--s7:#474325;--no:#ff8a80}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}\
main{max-width:62rem;margin:0 auto;padding:2.2rem 1.2rem 4rem}h1{font-size:1.7rem;margin:0 0 .6rem;overflow-wrap:anywhere}\
h2{font-size:1.15rem;margin:2.6rem 0 .4rem}a{color:inherit}.headline{font-size:1.2rem;margin:.4rem 0;overflow-wrap:anywhere}\
.headline strong{font-size:2.3rem;color:var(--c0);font-variant-numeric:tabular-nums}\
.note{color:var(--soft);font-size:.9rem;margin:.2rem 0 .8rem;max-width:46rem;overflow-wrap:anywhere}\
.wide{overflow-x:auto}.wide:focus-visible{outline:2px solid var(--c0);outline-offset:2px}\
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.38rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
thead th{color:var(--soft);font-weight:500;vertical-align:bottom}small{color:var(--soft)}td small{display:inline-block;min-width:4.2rem}\
th[scope=row],thead tr:first-child th:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}\
th[scope=row]{font-weight:600;white-space:normal;overflow-wrap:anywhere;min-width:7rem;max-width:16rem}\
.part th[scope=row]{font-weight:400;padding-left:1.6rem}.who{white-space:normal;overflow-wrap:anywhere;min-width:7rem}\
.over{text-align:center;border-bottom-style:dotted}.bar div{display:flex;width:8rem}\
.bar i{height:12px}.key{display:inline-block;width:10px;height:10px;margin-right:4px}\
.k0{background:var(--c0)}.k1{background:var(--c1)}.k2{background:var(--c4)}\
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}svg .grid{stroke:var(--line)}\
svg polyline{fill:none;stroke-width:2;stroke:var(--k)}svg .dash{stroke-dasharray:5 4}svg circle{fill:var(--k)}svg rect{fill:var(--c0)}\
.c0{--k:var(--c0)}.c1{--k:var(--c1)}.c2{--k:var(--c2)}.c3{--k:var(--c3)}.c4{--k:var(--c4)}\
figure{margin:0}figcaption{font-size:.85rem;color:var(--soft);overflow-wrap:anywhere}\
.chart{max-width:42rem;margin:.4rem 0 1.4rem}.chart .wide svg{min-width:21rem}\
.chart figcaption{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;margin-top:.2rem}\
.chart span{color:var(--ink)}.swatch{display:inline-block;width:24px;height:8px;margin-right:6px}\
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:1.2rem}.row figure{max-width:19rem}.row small{white-space:nowrap}.row figcaption{text-align:center}\
details{margin:1rem 0;border:1px solid var(--line);border-radius:8px;overflow:hidden}\
summary{padding:.5rem .8rem;background:var(--card);cursor:pointer;overflow-wrap:anywhere}\
pre{margin:0;padding:.7rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.7 ui-monospace,monospace}\
.prompt{color:var(--soft);border-bottom:1px solid var(--line)}.cut{color:var(--soft);font-size:.85rem;margin:0;padding:0 .8rem .7rem}\
.d,.t,.x{border-radius:3px;padding:1px 0}.x{color:var(--no);text-decoration:line-through}\
.legend{display:flex;flex-wrap:wrap;gap:.35rem;margin:.2rem 0 .8rem}.legend span{padding:1px 7px;font-size:.82rem}\
.legend .t{border:1px solid var(--line)}\
.s1{background:var(--s1)}.s2{background:var(--s2)}.s3{background:var(--s3)}.s4{background:var(--s4)}\
.s5{background:var(--s5)}.s6{background:var(--s6)}.s7{background:var(--s7)}\
.tree{max-width:none}.tree path{fill:none;stroke:var(--line);stroke-width:1.5}.tree .yes,.tree .bonus{stroke:var(--c2)}\
.tree path.yes,.tree path.bonus{stroke-width:3}.tree path.bonus{stroke:var(--c0)}\
.tree rect{fill:var(--paper);stroke:var(--line);stroke-width:1.5}.tree text{fill:var(--ink);stroke:none;font:12px ui-monospace,monospace}\
.tree .no rect{stroke-dasharray:3 3}.tree .no text{fill:var(--soft)}.tree .anchor rect{fill:var(--card);stroke:var(--soft)}\
.tree .yes rect{fill:var(--s2);stroke:var(--c2)}.tree .bonus rect{fill:var(--s1);stroke:var(--c0)}\
.legend .node{border:1.5px solid var(--line);border-radius:5px}.legend .anchor{background:var(--card);border-color:var(--soft)}\
.legend .yes{background:var(--s2);border-color:var(--c2)}.legend .bonus{background:var(--s1);border-color:var(--c0)}\
.legend .no{border-style:dashed;color:var(--soft)}\
ul{font-size:.9rem;padding-left:1.2rem;overflow-wrap:anywhere}\
@media(max-width:30rem){.chart .wide svg text{font-size:17px}}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;font-size:.9rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
";
