// On a narrow screen the pages stand in one row that scrolls: the one that is open is brought into view.
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
