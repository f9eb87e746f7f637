// Put everything in its place.

stateSection();
changeSection();
monthSection();
causeSection();
flowSection();
drawIn(byId("week-chart"), weekChart);
picks();
whatIf();
sizeSection();
yearSection();
expectedSection();
leverSection();
varianceSection();
noteSection();

theme(() => {}); // all colours follow from style sheets
document.documentElement.dataset.ready = "1";
