(function () {
  "use strict";
  var tip = document.getElementById("tip");
  document.addEventListener("mousemove", function (event) {
    var on = event.target.closest ? event.target.closest("[data-tip]") : null;
    if (!on) {
      tip.style.display = "none";
      return;
    }
    tip.textContent = on.getAttribute("data-tip");
    tip.style.display = "block";
    var box = tip.getBoundingClientRect();
    var left = event.clientX + 14;
    var top = event.clientY + 16;
    if (left + box.width > window.innerWidth - 8) left = event.clientX - box.width - 12;
    if (top + box.height > window.innerHeight - 8) top = event.clientY - box.height - 12;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  });
  document.documentElement.setAttribute("data-ready", "yes");
})();
