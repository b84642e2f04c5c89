import "../../widget/style.css";
